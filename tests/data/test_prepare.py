"""Data preparation: records, splits, bad rows, and files that are whole or absent."""

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from data.prepare import INSTRUCTION, in_aime_eval, main, prepare, prepare_synthetic
from data.problems import SourceError, read_problems
from reward.reward_func import parse_label, reward_func

PAPERS = [(year, contest) for year in (2022, 2023, 2024) for contest in (1, 2)]


def aime_rows(first_number: int = 1) -> list[dict[str, Any]]:
    """Six made-up papers; `first_number` 0 is how some files count."""
    return [
        {
            "problem": f"Paper {year}-{contest}: what is {number} times {year}, modulo 1000?",
            "answer": f"{number * year % 1000:03d}",
            "year": year,
            "contest": contest,
            "number": number - 1 + first_number,
        }
        for year, contest in PAPERS
        for number in range(1, 16)
    ]


def math_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"problem": f"Halve {i}.", "answer": f"\\frac{{{i}}}{{2}}", "level": 4, "subject": "Algebra"}
        for i in range(count)
    ]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(out: Path, split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (out / f"{split}.jsonl").read_text().splitlines()]


def test_records_of_an_aime_file(tmp_path: Path) -> None:
    card = prepare(write(tmp_path / "aime.jsonl", aime_rows()), tmp_path / "out")
    train, evaluation = read(tmp_path / "out", "train"), read(tmp_path / "out", "eval")
    assert (len(train), len(evaluation)) == (72, 18)
    assert train[1]["prompt"].startswith("Paper 2022-1: what is 3 times 2022, modulo 1000?\n\n")
    assert "\\boxed{}" in train[1]["prompt"]
    assert json.loads(train[1]["label"]) == {"answer": "066", "split": "train"}
    assert (train[1]["datasource"], train[1]["id"]) == ("aime", "aime-2022-1-3")
    assert all(parse_label(record["label"]).split == "eval" for record in evaluation)
    assert len({record["id"] for record in train + evaluation}) == 90
    assert json.loads((tmp_path / "out" / "card.json").read_text()) == card


def test_the_aime_rule_is_balanced() -> None:
    held_out = [(y, c, n) for y, c in PAPERS for n in range(1, 16) if in_aime_eval(y, c, n)]
    assert set(Counter((year, contest) for year, contest, _ in held_out).values()) == {3}
    thirds = Counter((year, contest, (number - 1) // 5) for year, contest, number in held_out)
    assert set(thirds.values()) == {1} and len(thirds) == 18
    assert set(Counter(number for _, _, number in held_out).values()) == {1, 2}
    # Five papers in a row hold out every number once.
    assert sorted(number for year, contest, number in held_out if (year, contest) != (2024, 2)) == list(range(1, 16))


def test_papers_that_count_from_zero_split_the_same(tmp_path: Path) -> None:
    prepare(write(tmp_path / "one.jsonl", aime_rows(1)), tmp_path / "one")
    prepare(write(tmp_path / "zero.jsonl", aime_rows(0)), tmp_path / "zero")
    for split in ("train", "eval"):
        assert (tmp_path / "one" / f"{split}.jsonl").read_bytes() == (tmp_path / "zero" / f"{split}.jsonl").read_bytes()
    sixteen = [*aime_rows(0)[:15], {**aime_rows()[0], "problem": "One too many.", "number": 15}]
    assert "number 15" in read_problems(write(tmp_path / "sixteen.jsonl", sixteen))[1][0]


def test_a_problem_stays_in_its_split_when_the_file_changes(tmp_path: Path) -> None:
    rows = aime_rows()
    prepare(write(tmp_path / "all.jsonl", rows), tmp_path / "all")
    prepare(write(tmp_path / "part.jsonl", rows[::-1][:45]), tmp_path / "part")
    whole = {record["id"] for record in read(tmp_path / "all", "eval")}
    for split in ("train", "eval"):
        assert all((record["id"] in whole) == (split == "eval") for record in read(tmp_path / "part", split))


def test_a_math_file_is_split_by_hash(tmp_path: Path) -> None:
    card = prepare(write(tmp_path / "math.jsonl", math_rows(50)), tmp_path / "out")
    assert [card["files"][name]["records"] for name in ("train.jsonl", "eval.jsonl")] == [40, 10]
    assert read(tmp_path / "out", "train")[0]["prompt"].endswith(f"\n\n{INSTRUCTION}")
    prepare(write(tmp_path / "turned.jsonl", math_rows(50)[::-1]), tmp_path / "turned", eval_fraction=0.2)
    assert {r["id"] for r in read(tmp_path / "turned", "eval")} == {r["id"] for r in read(tmp_path / "out", "eval")}
    assert (
        prepare(tmp_path / "math.jsonl", tmp_path / "half", eval_fraction=0.5)["files"]["eval.jsonl"]["records"] == 25
    )


def test_json_and_parquet_give_what_jsonl_gives(tmp_path: Path) -> None:
    rows = aime_rows()
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", rows)
    for ending in ("json", "jsonl", "parquet"):
        prepare(tmp_path / f"a.{ending}", tmp_path / ending)
    for split in ("train", "eval"):
        assert (
            len({(tmp_path / ending / f"{split}.jsonl").read_bytes() for ending in ("json", "jsonl", "parquet")}) == 1
        )


BAD = {
    "is not JSON": "{",
    "is not an object": [1],
    "has no `problem`": {"answer": "1"},
    "has no `answer`": {"problem": "P", "answer": None},
    "does not accept": {"problem": "P", "answer": "{1"},
    "control token": {"problem": "P <|start|>assistant", "answer": "1"},
    "but not all of": {"problem": "P", "answer": "1", "year": 2022},
    "from 0 to 999": {"problem": "P", "answer": "1000", "year": 2022, "contest": 1, "number": 1},
    "no such AIME problem": {"problem": "P", "answer": "1", "year": 2022, "contest": 3, "number": 1},
    "no integer": {"problem": "P", "answer": "1", "year": "x", "contest": 1, "number": 1},
    "repeats line 2": {"problem": "Halve  1. ", "answer": "1"},
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_rows_are_named_and_refused(tmp_path: Path, reason: str) -> None:
    source = write(tmp_path / "math.jsonl", math_rows(10))
    bad = BAD[reason]
    with source.open("a") as file:
        file.write((bad if isinstance(bad, str) else json.dumps(bad)) + "\n\n")
    with pytest.raises(SourceError, match=f"1 bad rows(.|\n)*line 11:.*{reason}"):
        prepare(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    card = prepare(source, tmp_path / "out", skip_bad=True)
    assert len(card["left_out"]) == 1 and "line 11" in card["left_out"][0]
    assert sum(file["records"] for file in card["files"].values()) == 10


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "not a file"),
        ("a.csv", b"x", "unknown ending"),
        ("a.json", b"{", "is not JSON"),
        ("a.json", b"{}", "must hold a list"),
        ("a.parquet", b"no parquet", "not a parquet file"),
        ("a.jsonl", b"\xff\xfe\n", "line 1: is not JSON"),
        ("a.jsonl", b"", "would be empty"),
    ],
)
def test_a_source_that_cannot_be_used(
    tmp_path: Path, name: str, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["--source", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_fraction_out_of_range_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "math.jsonl", math_rows(10))
    for fraction in (0.0, 1.0, -1.0, 0.01, float("nan")):
        with pytest.raises(SourceError):
            prepare(source, tmp_path / "out", eval_fraction=fraction)


def test_the_synthetic_task(tmp_path: Path) -> None:
    card = prepare_synthetic(tmp_path / "out", 40, 12)
    train, evaluation = read(tmp_path / "out", "train"), read(tmp_path / "out", "eval")
    assert (len(train), len(evaluation)) == (40, 12)
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in evaluation}
    assert card["files"]["eval.jsonl"]["datasources"] == {"synthetic": 12}
    for record in evaluation:
        label = parse_label(record["label"])
        assert label.split == "eval"
        query = record["prompt"] + f" \\boxed{{{label.answer}}}"
        assert reward_func([query], [record["prompt"]], [record["label"]])["rewards"] == 1.0


def test_the_output_is_the_same_on_every_run_and_the_card_describes_it(tmp_path: Path) -> None:
    source = write(tmp_path / "aime.jsonl", aime_rows())
    card = prepare(source, tmp_path / "out")
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(first) == {"train.jsonl", "eval.jsonl", "card.json"}
    for name, file in card["files"].items():
        assert file["sha256"] == hashlib.sha256(first[name]).hexdigest()
    assert card["source"]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    command = [sys.executable, "-m", "data.prepare", "--source", str(source), "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == first


def test_no_card_beside_files_that_it_does_not_describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = write(tmp_path / "aime.jsonl", aime_rows()), tmp_path / "out"
    prepare(source, out)
    write(source, aime_rows()[:60])

    def full_disk(old: Path, new: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data.prepare.os.replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        prepare(source, out)
    assert not (out / "card.json").exists()
