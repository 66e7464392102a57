"""The teacher's baseline: let the judge's model answer the problems itself, and grade its answers.

    python -m eval.teacher --model gemini-3.1-pro-preview --data F --n N --out DIR

F is a file from `python -m data.prepare`. DIR becomes an evaluation folder like those of `python -m eval.evaluate`, for
`eval.compare`. The key is GOOGLE_API_KEY if set, otherwise GEMINI_API_KEY. --judge-base-url has the same meaning as in
train_grpo.sh. It first asks whether the API offers the model. The same command continues an interrupted baseline and
keeps existing answers. Gemini's seeds are not reproducible, so samples differ between calls.

Exit code: 0 done, 1 some samples have no answer yet, 2 refused before anything is asked, 130 Ctrl-C.
"""

import argparse
import asyncio
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Any

from eval.output import Output, write_result
from eval.problems import EvalProblem, read_problems
from eval.table import result_table
from grpo.checkpoint.digests import digest_file
from grpo.stack import command
from grpo.stack.checkout import git_revision
from grpo.stack.problem import UserError
from reward import gemini, settings
from reward.chain import Chain, ChainError, connect


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = command.parser("eval.teacher", __doc__)
    add = command_line.add_argument
    add("--model", required=True, help="a Gemini model")
    add("--judge-base-url", metavar="URL", help="where requests go, if not to Google")
    add("--data", type=Path, required=True, help="problems: a .jsonl file from python -m data.prepare")
    add("--n", type=int, default=1, help="samples per problem (default: 1)")
    add("--out", type=Path, required=True, help="folder of this evaluation")
    add("--k", type=int, nargs="+", help="values of k for pass@k (default: N)")
    add("--limit", type=int, help="use only the first LIMIT problems")
    add("--max-tokens", type=int, default=32_768, help="length limit of a reply, including thoughts (default: 32768)")
    deadline = "seconds per sample, including tries and waiting (default: 1800)"
    add("--deadline", type=float, default=1800.0, help=deadline)
    add("--tries", type=int, default=3, help="calls per sample (default: 3)")
    add("--requests-per-minute", type=int, default=60, help="your quota of requests (default: 60)")
    add("--concurrency", type=int, default=16, help="concurrent calls (default: 16)")
    add("--count-unanswered", action="store_true", help="finish by counting samples without an answer as wrong")
    return command_line


def run(options: argparse.Namespace) -> dict[str, Any] | None:
    """Start or continue the baseline; return its result, or None if samples are still missing.

    Raises:
        UserError: before anything is asked, with the remedy.
    """
    counts = ("n", "limit", "max_tokens", "deadline", "tries", "requests_per_minute", "concurrency")
    command.check_counts(options, counts)
    chain_settings = settings.ChainSettings(
        models=(options.model,),
        tries=options.tries,
        deadline=options.deadline,
        call_timeout=options.deadline,
        requests_per_window=options.requests_per_minute,
        concurrency=options.concurrency,
        max_output_tokens=options.max_tokens,
    )
    try:
        key = settings.api_key()
        stand_in = os.environ.get(settings.STAND_IN_VARIABLE)
        where = stand_in or settings.base_url()
    except settings.SettingsError as error:
        raise UserError(error.what, error.remedy) from None
    if not (key or stand_in):
        raise UserError("no key for Gemini is set", "export GEMINI_API_KEY")
    if stand_in:
        print(f"eval.teacher: a local stand-in at {stand_in} answers instead of Gemini", file=sys.stderr)
    elif where != settings.GOOGLE_URL:
        print(f"eval.teacher: requests go to {where}", file=sys.stderr)
    problems = read_problems(options.data)[: options.limit]
    identity = {
        "model": options.model if not stand_in else f"local stand-in for {options.model}",
        "data_sha256": digest_file(options.data),
        "max_tokens": options.max_tokens,
        "google-genai": importlib.metadata.version("google-genai"),
    }
    if not stand_in and where != settings.GOOGLE_URL:
        identity["base_url"] = where
    about = {"data": str(options.data.resolve()), "limit": options.limit, "git": git_revision()}
    ks = options.k or [options.n]
    with Output(options.out, identity, about, problems, options.n, ks) as output:
        if output.missing:
            asking = settings.STAND_IN_KEY if stand_in else key or ""
            for wrong in asyncio.run(gemini.find_missing([options.model], asking, where)):
                raise UserError(f"--model: {wrong.what}", wrong.remedy)
            unanswered = asyncio.run(_ask(connect(chain_settings, key, stand_in), output, options.concurrency))
            for (problem, number), why in unanswered.items():
                print(f"eval.teacher: no answer to sample {number} of {problem.id}: {why}", file=sys.stderr)
                if options.count_unanswered:
                    output.append(problem, number, {"response": "", "unanswered": why})
            if unanswered and not options.count_unanswered:
                return None
        return write_result(options.out)


async def _ask(chain: Chain, output: Output, at_once: int) -> dict[tuple[EvalProblem, int], str]:
    """Request the missing samples; return those without an answer, and why."""
    unanswered = {}

    async def one(problem: EvalProblem, number: int) -> dict[str, Any] | None:
        try:
            reply = (await chain.ask(problem.prompt)).reply
        except ChainError as error:
            unanswered[problem, number] = str(error)
            return None
        length = sum(reply.tokens[1:])  # thoughts count
        return {"response": reply.text, "response_length": length, "truncated": float(reply.is_cut)}

    await output.draw(one, at_once)
    return unanswered


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = parser().parse_args(argv)
    if options.judge_base_url:
        os.environ["GRPO_JUDGE_BASE_URL"] = options.judge_base_url
    try:
        result = run(options)
    except UserError as error:
        print(f"eval.teacher: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"eval.teacher: interrupted; the same command continues {options.out}", file=sys.stderr)
        return 130
    if result is None:
        print(
            "eval.teacher: some samples have no answer; the same command tries again, or counts them as wrong with "
            "--count-unanswered",
            file=sys.stderr,
        )
        return 1
    print("\n".join(result_table(result)))
    return 0


if __name__ == "__main__":
    command.run(main, outlives=True)
