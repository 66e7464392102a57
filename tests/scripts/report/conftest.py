import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.metrics.metric_schema import SCHEMA

CHANNELS = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"


FEW = {"reward", "correct", "ppo_kl", "response_length", "reward_missing"}  # drawing takes 0.05 s a metric


def make_step_line(step: int, seed: int) -> dict:
    """A line with some numbers of a training step."""
    chance = random.Random(f"{seed} {step}")
    noisy = {
        metric.name: 0.5 + 0.4 * math.tanh(step / 300) + chance.gauss(0, 0.05)
        for metric in SCHEMA
        if metric.name in FEW
    }
    seconds = {"generate": 3.0 + chance.random(), "train": 4.0, "sync": 0.1, "total": 9.0}
    return {"step": step, "time": 1.8e9 + 9 * step, "seconds": seconds, **noisy}


def make_eval_line(step: int, value: float) -> dict:
    part = {"exact_match": value, "ci_low": value - 0.1, "ci_high": value + 0.1, "n": 18, "samples": 36}
    part["pass_at_k"] = {k: {"value": value, "ci_low": value - 0.1, "ci_high": value + 0.1} for k in ("1", "2")}
    return {"step": step, "time": 1.8e9, "seconds": 5.0, "truncated": 0.1, **part, "by_source": {"aime": part}}


def make_sample(number: int, correct: float, reward: float, response: str | None = None) -> dict:
    return {
        "id": f"problem-{number}",
        "prompt": f"<|start|>user<|message|>What is {number} plus 1?<|end|><|start|>assistant",
        "response": CHANNELS.format(f"thought {number}", f"\\boxed{{{number}}}") if response is None else response,
        "label": json.dumps({"answer": str(number + 1), "split": "train"}),
        "response_length": 10.0 + number,
        "reward": reward,
        "correct": correct,
    }


def write_lines(file: Path, rows: list[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "run", steps: int = 30, seed: int = 0, evals: bool = True, **flags) -> Path:
        folder = tmp_path / name
        write_lines(folder / "metrics.jsonl", [make_step_line(step, seed) for step in range(1, steps + 1)])
        rounds = [0, steps // 2, steps] if evals else []
        write_lines(folder / "eval.jsonl", [make_eval_line(step, 0.3 + 0.4 * step / steps) for step in rounds])
        for step in rounds:
            solved = 3 + 12 * step // steps
            rows = [make_sample(number, float(number < solved), float(number < solved)) for number in range(18)]
            write_lines(folder / "samples" / f"eval_{step}.jsonl", rows)
        write_lines(
            folder / "samples" / f"step_{steps}.jsonl", [make_sample(n, float(n % 2), n / 10) for n in range(8)]
        )
        config = {"name": name, "flags": {"seed": seed, "run_dir": str(folder), **flags}, "given": {"seed": seed}}
        (folder / "config.json").write_text(json.dumps({**config, "judge": {}, "plan": {"steps": steps}}))
        return folder

    return make
