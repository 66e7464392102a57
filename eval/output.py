"""The folder of an evaluation: config.json, samples.jsonl, grades.jsonl, result.json.

samples.jsonl grows by one line per finished sample. An interrupted evaluation continues after its last whole line.
Everything else is derived from it; the command that wrote it rebuilds it.
"""

import asyncio
import fcntl
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval import own_reward
from eval.problems import EvalProblem
from grpo.run import records
from grpo.run.records import Record
from grpo.run.run_files import RunFiles
from grpo.stack.command import printable
from grpo.stack.json_files import numbered_rows, open_file, read_bytes, read_json, read_rows, replace, replace_rows
from grpo.stack.problem import UserError
from reward import equivalence

CONFIG, SAMPLES, GRADES, RESULT = "config.json", "samples.jsonl", "grades.jsonl", "result.json"


class Output:
    """The folder while an evaluation writes to it; it is locked until closed.

    Args:
        folder: created if missing.
        identity: everything that a sample depends on besides problem and number.
        about: further content of config.json.
        problems, n: which samples are wanted: n of each problem. Both may differ from an earlier call's.
        ks: the k of pass@k.

    Attributes:
        samples: the wanted samples that exist, by problem and number.
        missing: the wanted samples that do not exist: problem and number.

    Raises:
        UserError: if the folder holds samples of another identity or something else, another evaluation writes to it,
            or a k is more than n. A folder of another identity without samples is taken over.
    """

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        about: dict[str, Any],
        problems: Sequence[EvalProblem],
        n: int,
        ks: Sequence[int],
    ) -> None:
        for k in ks:
            if not 1 <= k <= n:
                raise UserError(f"pass@{k} needs {k} samples per problem, but --n is {n}", "raise --n, or change --k")
        equivalence.warm_up()
        self.folder = folder
        config = read_config(folder) if (folder / CONFIG).is_file() else None
        if config and read_rows(folder / SAMPLES):
            _refuse_other(folder, config["identity"], identity)
        elif not config and folder.exists() and not _is_new(folder):
            raise UserError(f"{folder} exists and is not an evaluation", "give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open_file(folder / SAMPLES, "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another evaluation is writing to {folder}", "wait for it, or give another --out"
            ) from None
        wanted = {"n": n, "k": list(ks), "problems": [problem.id for problem in problems]}
        _write_json(folder / CONFIG, {"identity": identity, **about, **wanted})
        _drop_torn_line(folder / SAMPLES)
        self.samples = wanted_samples(folder)
        numbered = [(problem, number) for number in range(n) for problem in problems]
        self.missing = [(problem, number) for problem, number in numbered if (problem.id, number) not in self.samples]
        if self.missing:  # results of fewer samples do not match this config.json
            for name in (GRADES, RESULT):
                (folder / name).unlink(missing_ok=True)

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, problem: EvalProblem, number: int, generated: dict[str, Any]) -> None:
        """Write one finished sample.

        Args:
            generated: `response` and the other generated fields of :mod:`grpo.run.records`.
        """
        about = {"id": problem.id, "sample": number, "datasource": problem.datasource, "label": problem.label}
        record = about | {"prompt": problem.prompt} | generated
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self.samples[problem.id, number] = record

    async def draw(
        self, one: Callable[[EvalProblem, int], Awaitable[dict[str, Any] | None]], at_once: int, unit: str = "sample"
    ) -> None:
        """Draw the missing samples concurrently, `at_once` at a time; write each when it is finished.

        Args:
            one: returns what a sample adds to its record (see :meth:`append`), or None if it stays missing.
        """
        free, existing = asyncio.Semaphore(at_once), len(self.samples)
        total = existing + len(self.missing)
        name, bars = printable(self.folder.name), sys.__stderr__  # sys.stderr prints no carriage returns
        with tqdm(
            total=total, initial=existing, desc=name, unit=unit, file=bars, disable=None
        ) as bar:  # none in a pipe

            async def draw_one(problem: EvalProblem, number: int) -> None:
                async with free:
                    generated = await one(problem, number)
                if generated is not None:
                    self.append(problem, number, generated)
                bar.update()

            async with asyncio.TaskGroup() as samples:
                for problem, number in self.missing:
                    samples.create_task(draw_one(problem, number))


def wanted_samples(folder: Path) -> dict[tuple[str, int], Record]:
    """Return the samples in a folder that its config.json asks for, by problem and number."""
    config = read_config(folder)
    problems = set(config["problems"])
    rows = read_rows(folder / SAMPLES, {"id": str, "sample": int})
    whole = (row for row in rows if {"datasource", "label"} <= row.keys() and row.keys() & {"response", "messages"})
    wanted = (row for row in whole if row.get("id") in problems and row.get("sample") in range(config["n"]))
    return {(row["id"], row["sample"]): row for row in wanted}


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json. Raises UserError if it is missing."""
    try:
        config = read_json(folder / CONFIG)
        set(config["problems"]), range(config["n"]), {**config["identity"]}, list(config["k"])
    except (OSError, ValueError, KeyError, TypeError):
        raise _refuse_folder(folder) from None
    return config


def _refuse_folder(folder: Path) -> UserError:
    """Return what a folder that holds no evaluation is, and what to name instead: those of a training run are files."""
    if not folder.is_dir():
        return UserError(f"{folder} is not a folder", "name the --out of an evaluation")
    if evaluations := list(RunFiles(folder).sample_files("eval").values()):
        return UserError(f"{folder} is a training run, not an evaluation", f"name {evaluations[-1]}, its newest one")
    return UserError(f"{folder} is not an evaluation ({CONFIG} is missing or invalid)", "name the --out of one")


def _is_new(folder: Path) -> bool:
    """Tell whether a folder holds nothing but the leftovers of a start that was killed at once."""
    return folder.is_dir() and not any(file.stat().st_size and file.name[0] != "." for file in folder.iterdir())


def _refuse_other(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    differing = [
        f"{key} was {old.get(key)}, is {new.get(key)}" for key in {**old, **new} if old.get(key) != new.get(key)
    ]
    if differing:
        raise UserError(
            f"{folder} has samples of another configuration: {'; '.join(differing)}",
            "give another --out, or the settings in its config.json",
        )


def _drop_torn_line(file: Path) -> None:
    """Remove what follows the last line break: a line cut by a kill or a full disk."""
    data = read_bytes(file)
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(file, whole)


def write_result(folder: Path) -> dict[str, Any]:
    """Grade or score all samples of an evaluation, write grades.jsonl and result.json, and return the metrics.

    Raises:
        UserError: if there is no evaluation, or samples are missing.
    """
    equivalence.warm_up()
    config, samples = read_config(folder), wanted_samples(folder)
    wanted = len(config["problems"]) * config["n"]
    if len(samples) < wanted:
        # Short samples finish first, and are right more often.
        raise UserError(
            f"{folder} has {len(samples)} of {wanted} samples, which are not representative",
            "continue it with the command that started it",
        )
    keys = [(problem, number) for problem in config["problems"] for number in range(config["n"])]
    if files := own_reward.read_config(config):
        grades = own_reward.score([samples[key] for key in keys], files)
    else:
        grades = [records.grade_sample(samples[key]) for key in keys]
    replace_rows(folder / GRADES, grades)
    result = records.summarize_by_source(grades, config["k"])
    if means := records.average_conversations(grades):
        result["means"] = means
    _write_json(folder / RESULT, result)
    return result


def _write_json(file: Path, value: Any) -> None:
    replace(file, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_records(file: Path) -> list[Record]:
    """Return the graded records of a file. Raises UserError if it cannot be read, or a line is not a graded record."""
    try:
        rows = [row for _, row in numbered_rows(file)]
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})", "name a file of graded samples") from None
    objects = [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str | int)]
    if len(objects) < len(rows) or not all(row.keys() & {"correct", "measure"} for row in objects):
        raise UserError(f"{file} is not a file of graded samples", "name another, or repeat its command")
    return rows
