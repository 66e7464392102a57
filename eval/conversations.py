"""Evaluates a model behind an OpenAI API in a multi-turn environment, the same one that training uses.

python -m eval.conversations --environment retrieval --data eval.jsonl --model NAME --base-url http://HOST:PORT/v1 \
    --out FOLDER [--turns N] [--seconds S] [--tool-seconds S]

The key is OPENAI_API_KEY. FOLDER gets conversations.jsonl (messages, ending and score of each) and summary.json.
Exit code: 0 done, 1 some conversations failed, 2 invalid input (no request was sent).
"""

import argparse
import asyncio
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from grpo.rollout.multi_turn.conversation import (
    converse,
    is_message,
    make_environment,
    scored,
)
from grpo.rollout.multi_turn.environment import Environment, load
from grpo.rollout.multi_turn.openai_policy import OpenAIPolicy
from grpo.rollout.multi_turn.retrieval import VARIABLE
from grpo.rollout.multi_turn.settings import RolloutLimits
from grpo.stack.json_files import numbered_rows, replace, replace_rows
from grpo.stack.problem import UserError
from grpo.stack.variables import defaults

_DATA = "give a .jsonl file with prompt and label in every line"


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    command_line = argparse.ArgumentParser(
        prog="eval.conversations", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    command_line.add_argument(
        "--environment", required=True, help="like ENVIRONMENT in train_grpo.sh: a name or a .py file"
    )
    command_line.add_argument("--data", required=True, type=Path, help="a .jsonl file with prompt and label")
    command_line.add_argument("--model", required=True, help="name of the model at the API")
    command_line.add_argument("--base-url", help="address of the API (default: OpenAI's)")
    command_line.add_argument("--out", required=True, type=Path, help="a new or empty folder")
    command_line.add_argument("--n", type=int, default=1, help="conversations per problem (default: 1)")
    command_line.add_argument("--concurrency", type=int, default=8, help="concurrent conversations (default: 8)")
    command_line.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (default: 1.0)")
    command_line.add_argument("--max-tokens", type=int, default=4096, help="length limit of one turn (default: 4096)")
    limits = command_line.add_argument_group("limits of a conversation", "Their defaults are those of train_grpo.sh.")
    training = defaults(is_tiny=False)
    limits.add_argument("--turns", default=training["TURN_LIMIT"], type=int, help="turns of the model")
    limits.add_argument("--seconds", default=training["ROLLOUT_SECONDS"], type=float, help="seconds per conversation")
    limits.add_argument("--tool-seconds", default=training["TOOL_SECONDS"], type=float, help="seconds per tool call")
    return command_line


async def evaluate(options: argparse.Namespace, kind: type[Environment], rows: list[Any]) -> list[Any]:
    """Return a record of each conversation in environments of a kind, in problem order."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

    # A redirect would send the key and the messages to an unknown host.
    client = AsyncOpenAI(base_url=options.base_url, http_client=DefaultAsyncHttpxClient(follow_redirects=False))
    limits = RolloutLimits(options.turns, options.seconds, options.tool_seconds)
    free = asyncio.Semaphore(options.concurrency)

    async def one(row: dict[str, Any]) -> dict[str, Any]:
        settings = {"temperature": options.temperature, "max_completion_tokens": options.max_tokens}
        policy = OpenAIPolicy(client, options.model, **settings)
        about = {"id": row.get("id"), "prompt": row["prompt"], "label": row["label"]}
        async with free:
            environment = make_environment(kind, row["prompt"], row["label"])
            try:
                outcome = await converse(environment, policy, limits)
            except OpenAIError as error:
                return {**about, "error": _why(error, client.api_key)}
            score = await scored(environment, outcome)
        logs = {**outcome.logs(), **score.logs, "tokens": policy.tokens}
        results = {"reward": score.reward, "score": score.score, **logs}
        numbers = {key: value if math.isfinite(value) else None for key, value in results.items()}
        fault = {"error": outcome.fault} if outcome.fault else {}
        # The environment may have edited them in place into something that JSON cannot represent.
        messages = [message if is_message(message) else repr(message) for message in outcome.messages]
        return {**about, "ending": outcome.ending, **fault, **numbers, "messages": messages}

    async with client:
        return await asyncio.gather(*(one(row) for row in rows for _ in range(options.n)))


def _why(error: Exception, key: str) -> str:
    """Return why an API has not answered; for a redirect, also the remedy."""
    from openai import APIStatusError

    from reward.transport import redirect_message

    if isinstance(error, APIStatusError) and 300 <= error.status_code < 400:
        said = redirect_message(error.status_code, error.response.headers.get("location"), key)
        return f"{said}: set --base-url to the final address"
    return f"{type(error).__name__}: {error}"


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a data file.

    Raises:
        UserError: if the file cannot be read, or a line lacks prompt or label.
    """
    try:
        rows = list(numbered_rows(file))
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})", _DATA) from None
    for number, row in rows:
        if not isinstance(row, dict) or not {"prompt", "label"} <= row.keys():
            raise UserError(f"{file}, line {number} is not a JSON object with prompt and label", _DATA)
    if not rows:
        raise UserError(f"{file} is empty", _DATA)
    return [row for _, row in rows]


def summarise(records: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean of each number over the conversations that have it, and the failures, which have no reward."""
    keys = dict.fromkeys(key for record in records for key, value in record.items() if isinstance(value, float | int))
    means = {key: [record[key] for record in records if record.get(key) is not None] for key in keys if key != "id"}
    about = {"conversations": len(records), "failed": sum(record.get("reward") is None for record in records)}
    return about | {key: sum(values) / len(values) for key, values in means.items()}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = parser().parse_args(argv)
    if os.environ.get("LIBRARY"):  # as train_grpo.sh takes it
        os.environ.setdefault(VARIABLE, os.environ["LIBRARY"])
    try:
        environment = load(options.environment)
        environment.check()
        rows = read_rows(options.data)
        if not os.environ.get("OPENAI_API_KEY"):
            raise UserError("OPENAI_API_KEY is not set", "export it (any text for a local server that needs no key)")
        if options.out.exists() and any(options.out.iterdir()):
            raise UserError(f"{options.out} is not empty", "give another --out")
        for name in ("n", "concurrency", "max_tokens", "turns", "seconds", "tool_seconds"):
            if getattr(options, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}", "give more than 0")
    except UserError as error:
        print(f"eval.conversations: {error}", file=sys.stderr)
        return 2
    records = asyncio.run(evaluate(options, environment, rows))
    summary = summarise(records)
    options.out.mkdir(parents=True, exist_ok=True)
    replace_rows(options.out / "conversations.jsonl", records)
    replace(options.out / "summary.json", json.dumps(summary, indent=1) + "\n")
    print("\n".join(f"{key:20} {value:g}" for key, value in summary.items()))
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
