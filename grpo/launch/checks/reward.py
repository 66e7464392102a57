"""Reward functions of the user's own: each is loaded and called once before a run, in a process of its own."""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.environments.settings import has_environment
from grpo.launch.checks.data import uses_our_reward
from grpo.launch.checks.own_code import DEADLINE, call_apart
from grpo.launch.config import Config
from grpo.metrics.metric_schema import BY_NAME, OF_REWARDS
from grpo.run.eval_metric import USER_REWARD
from grpo.stack.json_files import numbered_rows, read_bytes
from grpo.stack.problem import Problem, UserError
from reward import user_files
from reward.answers import LabelError, parse_label
from reward.dry_run import call_once
from reward.user_files import RewardFile

_MARKUP = "<|start|>{role}<|message|>{content}<|end|>"
_RESPONSE = (
    "<|channel|>analysis<|message|>I know it.<|end|><|start|>assistant<|channel|>final<|message|>{answer}<|return|>"
)


def check_reward(config: Config) -> Iterator[Problem]:
    """Call each function of the user's own on the first line of TRAIN_DATA, with a right answer as the response.

    Without that line, the files are only loaded.
    """
    if has_environment(config.args):
        if not uses_our_reward(config):
            yield Problem("REWARD has no effect: the environment gives the reward", "unset REWARD, or ENVIRONMENT")
    elif is_users(config):
        sample = _read_first_sample(config)
        for file in user_files.from_environment():
            yield from check_file(file, sample, "REWARD")


def is_users(config: Config) -> bool:
    """Return whether the reward is of the user's own files."""
    return Path(config.args.remote_rm_url or "").resolve() == USER_REWARD


def describe(config: Config) -> list[str]:
    """Describe the user's own rewards in lines for people: what they pay for right answers and for a wrong one."""
    if has_environment(config.args) or not is_users(config):
        return []
    files, sample = user_files.from_environment(), _read_first_sample(config)
    lines = [f"reward      {' + '.join(f'{file.weight:g} x {file.path}' for file in files)}"]
    tried = [(file.weight, _try(file, sample)) for file in files]
    if sample is None or not all("wrong" in result for _, result in tried):
        return lines  # the checks say so, or the label is one that only the function reads
    paid = {}
    for query, result_name in (("query", "reward"), ("bare", "bare"), ("wrong", "wrong")):
        answer = sample[query].rpartition("<|message|>")[2].removesuffix("<|return|>")
        paid[f"{answer:.40}"] = sum(weight * result[result_name] for weight, result in tried)
    shown = ", ".join(f"{answer} {reward:g}" for answer, reward in paid.items())
    lines.append(f"            the first label of TRAIN_DATA is {str(sample['label'])!r:.60}; it pays {shown}")
    *right, wrong = paid.values()
    if max(right) <= wrong:
        lines.append("WARNING: REWARD pays no more for a right answer than for a wrong one: docs/reward.md")
    return lines


def _read_first_sample(config: Config) -> dict[str, Any] | None:
    """Return :func:`make_sample` of the first line of TRAIN_DATA; None if it cannot be read."""
    args = config.args
    try:
        row = next((row for _, row in numbered_rows(Path(args.prompt_data or "")) if isinstance(row, dict)), {})
    except OSError:
        return None
    return make_sample(row[args.input_key], row.get(args.label_key)) if row.get(args.input_key) else None


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
    try:
        bare = parse_label(label).answer
        wrong = re.sub(r"\w", lambda each: "3" if each[0] == "7" else "7", bare)  # as long: some pay for brevity
        answers = {"query": f"\\boxed{{{bare}}}", "bare": bare, "wrong": f"\\boxed{{{wrong}}}"}
    except LabelError:
        answers = {"query": "\\boxed{1}"}
    queries = {name: prompt + _RESPONSE.format(answer=answer) for name, answer in answers.items()}
    return {"prompt": prompt, "label": label, **queries}


def check_file(file: RewardFile, sample: dict[str, Any] | None, setting: str) -> Iterator[Problem]:
    """Call a reward on a sample in a process of its own; without a sample, only load its file."""
    result = _try(file, sample)
    taken = [name for name in result.get("logs", ()) if name in BY_NAME.keys() - OF_REWARDS]
    if "error" in result:
        yield Problem(f"{setting}: {file.path} {result['error']}", result["remedy"])
    elif taken:
        what = f"{setting}: {file.path} logs {taken[0]!r}, which is a metric of every run"
        yield Problem(what, "give that log another name")


def _try(file: RewardFile, sample: dict[str, Any] | None) -> dict[str, Any]:
    if file.path.suffix != ".py" or not file.path.is_file():
        what = "is not a .py file" if file.path.exists() else "does not exist"
        return {"error": what, "remedy": "name a .py file with reward_func"}
    return _try_cached(file.path, read_bytes(file.path), json.dumps(sample))


@functools.cache  # for its problems and for its description
def _try_cached(path: Path, content: bytes, sample: str) -> dict[str, Any]:
    return try_file(path, json.loads(sample))


def try_file(path: Path, sample: dict[str, Any] | None, deadline: float = DEADLINE) -> dict[str, Any]:
    """Return the result of :func:`reward.dry_run.call_once`; `error` and `remedy` if it comes to none."""
    try:
        return call_apart(lambda: call_once(path, sample), deadline)
    except UserError as error:
        return {"error": error.problem.what, "remedy": error.problem.remedy}
