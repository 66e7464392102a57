"""Reading rows: local files, and data sets of the hub as its own library keeps them in its cache."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from data.sources import HUB, HubSet, read_source
from grpo.stack.problem import UserError
from tests.data.conftest import ROOT, make_aime_rows, make_math_rows, read_split, write_rows

PAGE = "https://artofproblemsolving.com/wiki/index.php/{year}_AIME_{contest}_Problems/Problem_{number}"


def cache(home: Path, hub: HubSet, parts: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Fill the cache of the hub's library with a data set; return the variables of a process without network."""
    snapshot = home / "hub" / f"datasets--{hub.repository.replace('/', '--')}" / "snapshots" / hub.revision
    for part, rows in parts.items():
        (snapshot / part).mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), snapshot / part / "train-00000-of-00001.parquet")
    return {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def run(out: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "data.prepare", "--out", str(out), *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_aime_of_the_hub_is_what_a_local_file_gives(tmp_path: Path) -> None:
    rows = make_aime_rows()
    urls = [PAGE.format_map(row | {"contest": "I" * row["contest"]}) for row in rows]
    parts = [{"id": 1, "problem": row["problem"], "solution": "So.", "answer": row["answer"]} for row in rows]
    offline = cache(
        tmp_path / "home", HUB["aime"], {"data": [p | {"url": u} for p, u in zip(parts, urls, strict=True)]}
    )
    file = write_rows(tmp_path / "aime.jsonl", rows)
    for folder, source in (("hub", "aime"), ("local", str(file))):
        done = run(tmp_path / folder, offline, "--source", source)
        assert done.returncode == 0, done.stderr
    for split, count in (("train", 72), ("eval", 18)):
        records = read_split(tmp_path / "hub", split)
        assert len(records) == count and records == read_split(tmp_path / "local", split)


def test_math_of_the_hub(tmp_path: Path) -> None:
    kept: dict[str, list[dict[str, Any]]] = {"algebra": [], "geometry": []}
    for number, row in enumerate(make_math_rows(7500)):
        solution = f"First \\boxed{{0}}, then $\\boxed{{{row['answer']}}}$."
        hub_row = {"problem": row["problem"], "level": f"Level {number // 2 % 5 + 1}", "solution": solution}
        part = list(kept)[number % 2]
        kept[part].append(hub_row | {"type": part.title()})
    offline = cache(tmp_path / "home", HUB["math"], kept)
    done = run(tmp_path / "out", offline, "--source", "math")
    assert done.returncode == 0, done.stderr
    records = read_split(tmp_path / "out", "train") + read_split(tmp_path / "out", "eval")
    assert len(records) == 45 and "(another level than --levels 4 5): 4500" in done.stdout
    golds = {row["problem"]: row["answer"] for row in make_math_rows(7500)}
    for record in records:
        assert json.loads(record["label"])["answer"] == golds[record["prompt"].split("\n\n")[0]]


@pytest.mark.parametrize("rows", [0, 89])
def test_a_set_of_the_hub_that_is_not_here_or_not_whole_is_refused(tmp_path: Path, rows: int) -> None:
    row = {"problem": "P", "answer": "1", "url": PAGE.format(year=2024, contest="I", number=1)}
    offline = cache(tmp_path, HUB["aime"], {"data": [row] * rows} if rows else {})
    done = run(tmp_path / "out", offline, "--source", "aime")
    assert done.returncode == 2 and "hf download AI-MO/aimo-validation-aime" in done.stderr
    assert "Traceback" not in done.stderr


def test_files_of_all_kinds_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"problem": 'Add 1, and "2"\nto 3.', "answer": "6"}, {"problem": "Halve 8.", "answer": "4"}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("\ufeff" + json.dumps(rows[0]) + "\n\n" + json.dumps(rows[1]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text('problem,answer\n"Add 1, and ""2""\nto 3.",6\n\nHalve 8.,4\n')
    (tmp_path / "b.csv").write_bytes('\ufeffproblem;answer\r\n"Add 1, and ""2""\nto 3.";6\r\nHalve 8.;4\r\n'.encode())
    (tmp_path / "a.tsv").write_text('problem\tanswer\n"Add 1, and ""2""\nto 3."\t6\nHalve 8.\t4\n')
    places = {"a.json": "row 2", "a.jsonl": "line 3", "a.parquet": "row 2", "a.csv": "line 5", "b.csv": "line 4"}
    for path in tmp_path.iterdir():
        read, about = read_source(str(path))
        assert [row.value for row in read] == rows and about["rows"] == 2
        assert read[1].location == f"{path}, {places.get(path.name, 'line 4')}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.jsonl", None), ("a.txt", b"x"), ("a.jsonl", b"\n\n"), ("a.json", b"{"), ("a.json", b"{}"),
        ("a.json", b"[" * 200_000 + b"]" * 200_000), ("a.parquet", b"no parquet"),
        ("a.csv", b"problem,answer,answer\nP,1,2\n"), ("a.csv", b'problem,answer\n"P,1\n'),
        ("a.csv", "problem,answer\nÄ,1\n".encode("latin-1")),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(str(tmp_path / name))):
        read_source(str(tmp_path / name))


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl"])
def test_a_file_of_any_size_is_not_read_into_memory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 1 << 40)
    with pytest.raises(OSError, match=r"larger|longer"):
        read_source(str(tmp_path / name))


def test_a_row_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"problem": "P", "answer": "1", "answer": "2"}\n{\n{"problem": "P"}\n')
    doubled, broken, good = [row.value for row in read_source(str(tmp_path / "a.jsonl"))[0]]
    assert isinstance(doubled, ValueError) and isinstance(broken, ValueError) and good == {"problem": "P"}
    (tmp_path / "b.csv").write_text("problem,answer\nP,1,2\nQ,1\n")
    fault, good = [row.value for row in read_source(str(tmp_path / "b.csv"))[0]]
    assert "3 cells" in str(fault) and good == {"problem": "Q", "answer": "1"}
