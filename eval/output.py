"""The folder of an evaluation: config.json, samples.jsonl, grades.jsonl, result.json.

samples.jsonl grows by one line per finished sample. An interrupted evaluation continues after its last whole line.
Everything else is derived from it and can be rebuilt (`python -m eval.regrade`).
"""

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.problems import EvalError, EvalProblem
from grpo.run import records
from grpo.run.records import Record
from grpo.stack.json_files import read_rows, replace
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
        EvalError: if the folder holds samples of another identity or something else, another evaluation writes to it,
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
                raise EvalError(f"pass@{k} needs {k} samples a problem, and there are {n}: raise --n, or change --k")
        equivalence.warm_up()
        self.folder = folder
        config = read_config(folder) if (folder / CONFIG).is_file() else None
        if config and read_rows(folder / SAMPLES):
            _refuse_other(folder, config["identity"], identity)
        elif not config and folder.exists() and not _is_new(folder):
            raise EvalError(f"{folder} is there and holds no evaluation: give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / SAMPLES).open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvalError(f"another evaluation is writing to {folder}: wait for it, or give another --out") from None
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
        record = about | generated
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self.samples[problem.id, number] = record


def wanted_samples(folder: Path) -> dict[tuple[str, int], Record]:
    """Return the samples in a folder that its config.json asks for, by problem and number."""
    config = read_config(folder)
    problems = set(config["problems"])
    rows = read_rows(folder / SAMPLES)
    return {(row["id"], row["sample"]): row for row in rows if row["id"] in problems and row["sample"] < config["n"]}


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json.

    Raises:
        EvalError: if it is missing.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config["identity"], config["problems"], config["n"], config["k"]
    except (OSError, ValueError, KeyError, TypeError):
        raise EvalError(f"{folder} holds no evaluation (no {CONFIG} that can be read): {_instead(folder)}") from None
    return config


def _instead(folder: Path) -> str:
    """Return what to name instead of a folder that holds no evaluation: those of a training run are files."""
    for run in (folder, *folder.absolute().parents[:2]):  # a run, its checkpoints, one of their steps
        if (run / "checkpoints").is_dir() or (run / "samples").is_dir():
            files = sorted((run / "samples").glob("eval_*.jsonl"), key=lambda file: (len(file.name), file.name))
            if files:
                return f"it belongs to a training run, whose newest evaluation is {files[-1]}"
            return f"it belongs to a training run without an evaluation so far (none in {run / 'samples'})"
    return ("" if folder.is_dir() else "there is no such folder; ") + "name the --out of an evaluation"


def _is_new(folder: Path) -> bool:
    """Tell whether a folder holds nothing but the leftovers of a start that was killed at once."""
    return folder.is_dir() and not any(file.stat().st_size and file.name[0] != "." for file in folder.iterdir())


def _refuse_other(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    differing = [
        f"{key} was {old.get(key)}, is {new.get(key)}" for key in {**old, **new} if old.get(key) != new.get(key)
    ]
    if differing:
        raise EvalError(
            f"{folder} holds samples of another configuration: {'; '.join(differing)}. Give another --out, or the "
            "settings of its config.json"
        )


def _drop_torn_line(file: Path) -> None:
    """Remove what follows the last line break: a line cut by a kill or a full disk."""
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(file, whole)


def write_result(folder: Path) -> dict[str, Any]:
    """Grade all samples of an evaluation, write grades.jsonl and result.json, and return the metrics.

    Raises:
        EvalError: if there is no evaluation, or samples are missing.
    """
    equivalence.warm_up()
    config, samples = read_config(folder), wanted_samples(folder)
    wanted = [(problem, number) for problem in config["problems"] for number in range(config["n"])]
    if len(samples) < len(wanted):
        # Short samples finish first, and are right more often.
        raise EvalError(
            f"{folder} has {len(samples)} of {len(wanted)} samples, and the missing ones are not like the others: "
            "continue it with the command that it was started with"
        )
    grades = [records.graded(samples[key]) for key in wanted]
    replace(folder / GRADES, "".join(json.dumps(grade, ensure_ascii=False) + "\n" for grade in grades))
    result = records.summarise_by_source(grades, config["k"])
    _write_json(folder / RESULT, result)
    return result


def _write_json(file: Path, value: Any) -> None:
    replace(file, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_records(file: Path) -> list[Record]:
    """Return the graded records of a file.

    Raises:
        EvalError: if it cannot be read, or a line is not a graded record.
    """
    try:
        # Not splitlines: a text may contain a Unicode line separator.
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        for record in records:
            record["id"], record["correct"]
    except OSError as error:
        raise EvalError(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise EvalError(f"{file} is no file of graded samples: name another, or grade it with eval.regrade") from None
    return records
