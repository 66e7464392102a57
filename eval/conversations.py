"""Evaluates a model behind an OpenAI API in an environment of several turns: the same one that training uses.

python -m eval.conversations --environment retrieval --data eval.jsonl --model NAME --base-url http://HOST:PORT/v1 \
    --out FOLDER

The key is taken from OPENAI_API_KEY. Writes conversations.jsonl (messages, ending and score of each) and summary.json.
Exit code: 0 done, 1 some conversations failed, 2 bad input, before any request.
"""

import argparse
import asyncio
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from eval.problems import EvalError
from grpo.rollout.multi_turn.conversation import (
    Limits,
    converse,
    is_message,
    make_environment,
    scored,
)
from grpo.rollout.multi_turn.environment import Environment, SetupError, load
from grpo.rollout.multi_turn.openai_policy import OpenAIPolicy
from grpo.rollout.multi_turn.retrieval import VARIABLE
from grpo.stack.json_files import replace


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    found = argparse.ArgumentParser(
        prog="eval.conversations", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    found.add_argument("--environment", required=True, help="as ENVIRONMENT of train_grpo.sh: a name or a .py file")
    found.add_argument("--data", required=True, type=Path, help="a .jsonl file with prompt and label")
    found.add_argument("--model", required=True, help="the model's name at the API")
    found.add_argument("--base-url", help="where the API is (default: OpenAI's)")
    found.add_argument("--out", required=True, type=Path, help="a new or empty folder")
    found.add_argument("--n", type=int, default=1, help="conversations a problem (default: 1)")
    found.add_argument("--concurrency", type=int, default=8, help="conversations at once (default: 8)")
    found.add_argument("--temperature", type=float, default=1.0, help="default: 1.0")
    found.add_argument("--max-tokens", type=int, default=4096, help="of one turn (default: 4096)")
    found.add_argument("--turns", type=int, default=Limits.turns, help=f"default: {Limits.turns}")
    found.add_argument("--seconds", type=float, default=Limits.seconds, help=f"of one (default: {Limits.seconds:g})")
    return found


async def evaluate(options: argparse.Namespace, kind: type[Environment], rows: list[Any]) -> list[Any]:
    """Return a record of each conversation in environments of a kind, in problem order."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

    # A redirect would send the key and the messages to a host that nobody chose.
    client = AsyncOpenAI(base_url=options.base_url, http_client=DefaultAsyncHttpxClient(follow_redirects=False))
    limits = Limits(turns=options.turns, seconds=options.seconds)
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
        found = {"reward": score.reward, "score": score.score, **logs}
        numbers = {key: value if math.isfinite(value) else None for key, value in found.items()}
        fault = {"error": outcome.fault} if outcome.fault else {}
        # The environment may have edited them in place into something that no file can hold.
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
        return f"{said}: give --base-url the API's own address"
    return f"{type(error).__name__}: {error}"


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a data file.

    Raises:
        EvalError: if the file cannot be read, or a line lacks prompt or label.
    """
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise EvalError(f"{file} cannot be read ({error}): give JSON lines with prompt and label") from None
    if not rows or not all(isinstance(row, dict) and {"prompt", "label"} <= row.keys() for row in rows):
        raise EvalError(f"{file}: each line needs prompt and label, and there has to be one")
    return rows


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
            raise EvalError("OPENAI_API_KEY is not set: export it (any text for a local server that asks for none)")
        if options.out.exists() and any(options.out.iterdir()):
            raise EvalError(f"{options.out} is not empty: give another --out")
        for name in ("n", "concurrency", "max_tokens", "turns", "seconds"):
            if getattr(options, name) <= 0:
                raise EvalError(f"--{name.replace('_', '-')} is {getattr(options, name)}: give more than 0")
    except (EvalError, SetupError) as error:
        print(f"eval.conversations: {error}", file=sys.stderr)
        return 2
    records = asyncio.run(evaluate(options, environment, rows))
    summary = summarise(records)
    options.out.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    replace(options.out / "conversations.jsonl", lines)
    replace(options.out / "summary.json", json.dumps(summary, indent=1) + "\n")
    print("\n".join(f"{key:20} {value:g}" for key, value in summary.items()))
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
