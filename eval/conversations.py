"""Evaluates a model behind an OpenAI API in a multi-turn environment, the same one that training uses.

    python -m eval.conversations --environment retrieval --data eval.jsonl --model NAME --base-url http://HOST:PORT/v1 \
        --out DIR [--n N] [--turns N] [--seconds S] [--tool-seconds S]

The key is OPENAI_API_KEY. DIR gets config.json, samples.jsonl (every conversation), grades.jsonl and result.json, as
from eval.evaluate; eval.compare compares them. A conversation is written when it ends. After an interruption, or if the
API did not answer for some, the same command continues.

Exit code: 0 done, 1 conversations are missing or have no reward, 2 refused before a request was sent, 130 Ctrl-C.
"""

import argparse
import asyncio
import functools
import os
import sys
from pathlib import Path
from typing import Any

from eval import harness
from eval.identity import file_digest, identify_environment
from eval.output import Output, write_result
from eval.problems import EvalProblem, read_problems
from eval.table import result_table
from grpo.rollout.multi_turn.conversation import play
from grpo.rollout.multi_turn.environment import Environment
from grpo.rollout.multi_turn.openai_policy import OpenAIPolicy
from grpo.stack import command
from grpo.stack.checkout import git_revision
from grpo.stack.problem import UserError

Failures = list[tuple[EvalProblem, int, str]]


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    command_line = command.parser("eval.conversations", __doc__)
    command_line.add_argument(
        "--environment", required=True, help="like ENVIRONMENT in train_grpo.sh: a name or a .py file"
    )
    command_line.add_argument("--data", required=True, type=Path, help="a .jsonl file with prompt and label")
    command_line.add_argument("--model", required=True, help="name of the model at the API")
    command_line.add_argument("--base-url", help="address of the API (default: OpenAI's)")
    command_line.add_argument("--out", required=True, type=Path, help="folder of this evaluation")
    command_line.add_argument("--n", type=int, default=1, help="conversations per problem (default: 1)")
    command_line.add_argument("--k", type=int, nargs="+", help="values of k for pass@k (default: 1 and N)")
    command_line.add_argument("--limit", type=int, help="use only the first LIMIT problems")
    command_line.add_argument("--concurrency", type=int, default=8, help="concurrent conversations (default: 8)")
    command_line.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (default: 1.0)")
    command_line.add_argument("--max-tokens", type=int, default=4096, help="length limit of one turn (default: 4096)")
    harness.add_limits(command_line)
    return command_line


def run(options: argparse.Namespace) -> tuple[dict[str, Any] | None, Failures]:
    """Start or continue an evaluation; return its result, None if conversations are missing, and these with the reason.

    Raises:
        UserError: before a request is sent.
    """
    command.check_counts(options, ("n", "limit", "concurrency", "max_tokens"))
    harness.read_limits(options)
    kind = harness.load_environment(options.environment)
    problems = read_problems(options.data, "environment")[: options.limit]
    if not os.environ.get("OPENAI_API_KEY"):
        raise UserError("OPENAI_API_KEY is not set", "export it (any text for a local server that needs no key)")
    identity = {
        **{name: getattr(options, name) for name in ("model", "base_url", "temperature", "max_tokens")},
        "data_sha256": file_digest(options.data),
        **identify_environment(options),
    }
    about = {"data": str(options.data.resolve()), "limit": options.limit, "git": git_revision()}
    with Output(options.out, identity, about, problems, options.n, options.k or sorted({1, options.n})) as output:
        failures = asyncio.run(_ask(options, kind, output)) if output.missing else []
        return (None if failures else write_result(options.out)), failures


async def _ask(options: argparse.Namespace, kind: type[Environment], output: Output) -> Failures:
    """Hold the missing conversations; return those that the API did not answer, and why."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

    # A redirect would send the key and the messages to an unknown host.
    client = AsyncOpenAI(base_url=options.base_url, http_client=DefaultAsyncHttpxClient(follow_redirects=False))
    failures: Failures = []

    async def one(problem: EvalProblem, number: int) -> dict[str, Any] | None:
        settings = {"temperature": options.temperature, "max_completion_tokens": options.max_tokens}
        policy = OpenAIPolicy(client, options.model, **settings)
        make = functools.partial(kind, problem.prompt, problem.label)
        try:
            outcome, score = await play(make, policy, harness.read_limits(options))
        except OpenAIError as error:
            failures.append((problem, number, _describe_failure(error, client.api_key)))
            return None
        return harness.make_record(outcome, score, policy.tokens)

    async with client:
        await output.draw(one, options.concurrency, "conversation")
    return failures


def _describe_failure(error: Exception, key: str) -> str:
    """Return why an API has not answered; for a redirect, also the remedy."""
    from openai import APIStatusError

    from reward.transport import redirect_message

    if isinstance(error, APIStatusError) and 300 <= error.status_code < 400:
        said = redirect_message(error.status_code, error.response.headers.get("location"), key)
        return f"{said}: set --base-url to the final address"
    return f"{type(error).__name__}: {error}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = parser().parse_args(argv)
    try:
        result, failures = run(options)
    except UserError as error:
        print(f"eval.conversations: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"eval.conversations: interrupted; the same command continues {options.out}", file=sys.stderr)
        return 130
    for problem, number, why in failures:
        print(f"eval.conversations: no answer in conversation {number} of {problem.id}: {why}", file=sys.stderr)
    if result is None:
        print("eval.conversations: some conversations are missing; the same command continues", file=sys.stderr)
        return 1
    print("\n".join([*result_table(result), *harness.lines(result)]))
    return 1 if result["ungraded"] else 0


if __name__ == "__main__":
    command.print_plainly()
    sys.exit(main())
