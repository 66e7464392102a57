"""Reward functions of the user's own: each is loaded and called once before a run, in a process of its own."""

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.environments.settings import has_environment
from grpo.launch.checks.data import uses_our_reward
from grpo.launch.checks.own_code import DEADLINE, call_apart
from grpo.launch.config import Config
from grpo.metrics.metric_schema import BY_NAME
from grpo.run.measure import USER_REWARD
from grpo.stack.json_files import numbered_rows
from grpo.stack.problem import Problem, UserError
from reward import user_files
from reward.labels import LabelError, parse_label
from reward.trial import attempt
from reward.user_files import RewardFile

_WRONG = "-8675309"
_MARKUP = "<|start|>{role}<|message|>{content}<|end|>"
_RESPONSE = (
    "<|channel|>analysis<|message|>I know it.<|end|><|start|>assistant<|channel|>final<|message|>"
    "\\boxed{{{answer}}}<|return|>"
)


def check_reward(config: Config) -> Iterator[Problem]:
    """Call each function of the user's own on the first line of TRAIN_DATA, with a right answer as the response.

    Without that line, the files are only loaded.

    Raises:
        SettingsError: for invalid settings, which :func:`grpo.launch.judge.choose_judge` refuses before.
    """
    if has_environment(config.args):
        if not uses_our_reward(config):
            yield Problem("REWARD has no effect: the environment gives the reward", "unset REWARD, or ENVIRONMENT")
        return
    if not is_users(config):
        return
    files = user_files.from_environment()
    if not files:
        yield Problem("REWARD names no file", "set REWARD to a .py file with reward_func")
    sample = read_first_sample(config)
    for file in files:
        yield from check_file(file, sample, "REWARD")


def is_users(config: Config) -> bool:
    """Return whether the reward is of the user's own files."""
    return Path(config.args.remote_rm_url or "").resolve() == USER_REWARD


def describe(config: Config) -> list[str]:
    """Describe the user's own rewards in lines for people: what they pay for a right and for a wrong answer."""
    if has_environment(config.args) or not is_users(config):
        return []
    files, sample = user_files.from_environment(), read_first_sample(config)
    lines = [f"reward      {' + '.join(f'{file.weight:g} x {file.path}' for file in files)}"]
    if sample is None or "wrong" not in sample:
        return lines
    tried = [try_once(file.path, sample) for file in files if file.path.is_file()]
    if len(tried) < len(files) or any("error" in result for result in tried):
        return lines  # the checks say so
    right, wrong = (
        sum(file.weight * result[name] for file, result in zip(files, tried, strict=True))
        for name in ("reward", "wrong")
    )
    less = "no reward" if math.isnan(wrong) else f"{wrong:g}"
    lines.append(
        f"            pays {right:g} for the right answer to the first line of TRAIN_DATA, {less} for a wrong one"
    )
    if right <= wrong:
        lines.append(
            "WARNING: REWARD pays no more for a right answer in a box than for a wrong one; see docs/own-reward.md for "
            "what it is called with"
        )
    return lines


def read_first_sample(config: Config) -> dict[str, Any] | None:
    """Return :func:`make_sample` of the first line of TRAIN_DATA; None if it cannot be read."""
    args = config.args
    try:
        row = next((row for _, row in numbered_rows(Path(args.prompt_data or "")) if isinstance(row, dict)), {})
    except OSError:
        return None
    if not row.get(args.input_key):
        return None
    return make_sample(row[args.input_key], row.get(args.label_key))


def make_sample(chat: Any, label: Any) -> dict[str, Any]:
    """Return a problem with a right answer and a wrong one, as a reward function sees them.

    The prompt is in harmony's markup without the template's system message.

    Args:
        chat: the prompt: text, or messages.
        label: of any form; a label that only the user's function reads has an answer that may be wrong, and no other.
    """
    messages = chat if isinstance(chat, list) else [{"role": "user", "content": chat}]
    prompt = "".join(_MARKUP.format_map({"role": "user", "content": "", **message}) for message in messages)
    prompt += "<|start|>assistant"
    sample = {"prompt": prompt, "label": label}
    try:
        answer = parse_label(label).answer
    except LabelError:  # a label that only the user's function reads
        return {"query": prompt + _RESPONSE.format(answer="1"), **sample}
    responses = {"query": answer, "wrong": _WRONG}
    return {**{name: prompt + _RESPONSE.format(answer=said) for name, said in responses.items()}, **sample}


def check_file(file: RewardFile, sample: dict[str, Any] | None, setting: str) -> Iterator[Problem]:
    """Call a function once, in a process of its own.

    Args:
        sample: of :func:`make_sample`; None to load the file and no more.
        setting: what names the file.
    """
    if not file.path.is_file() or file.path.suffix != ".py":
        is_file = "is not a .py file" if file.path.exists() else "does not exist"
        yield Problem(f"{setting}: {file.path} {is_file}", f"set {setting} to a .py file with reward_func")
        return
    result = try_once(file.path, sample)
    if "error" in result:
        yield Problem(f"{setting}: {file.path} {result['error']}", result["remedy"])
        return
    taken = [name for name in result["logs"] if name in BY_NAME and BY_NAME[name].source != "reward"]
    if taken:
        yield Problem(
            f"{setting}: {file.path} logs {taken[0]!r}, which is a metric of every run", "give that log another name"
        )


def try_once(path: Path, sample: dict[str, Any] | None) -> dict[str, Any]:
    """Return :func:`try_file`'s result; the same file is tried once, for its problems and for its description."""
    return _try_cached(path, path.read_bytes(), json.dumps(sample))


@functools.cache
def _try_cached(path: Path, content: bytes, sample: str) -> dict[str, Any]:
    return try_file(path, json.loads(sample))


def try_file(path: Path, sample: dict[str, Any] | None, deadline: float = DEADLINE) -> dict[str, Any]:
    """Return the result of :func:`reward.trial.attempt`; `error` and `remedy` if it comes to none."""
    try:
        return call_apart(lambda: attempt(path, sample), deadline)
    except UserError as error:
        return {"error": error.problem.what, "remedy": error.problem.remedy}
