"""A run that was started, and what it had logged when it ended."""

import json
from pathlib import Path

from grpo.flags.parser import Asked
from grpo.launch import run_dir
from grpo.launch.config import Config
from grpo.launch.judge import RunJudge
from grpo.launch.plan import make_plan


def start(setting, **changes: object) -> Config:
    """Write the files that the launcher writes before the trainer starts."""
    config = setting.make_config(**changes)
    setting.run_dir.mkdir()
    run_dir.write(setting.run_dir, Asked({}), config, make_plan(config), {"digest": "d1"}, RunJudge(None, False))
    return config


def log(folder: Path, name: str, steps: range) -> None:
    (folder / name).write_text("".join(json.dumps({"step": step, "exact_match": 0.5}) + "\n" for step in steps))


def read_steps(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]
