"""The whole preparation, by its command line: records, the card, refusals, and files that are whole or absent."""

import hashlib
import json
import os
import random
import signal
import unicodedata
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

from data import prepare
from grpo.launch.checks.data import read_records
from grpo.rollout.harmony import renderer
from reward.answers import parse_label
from reward.reward_func import reward_func
from scripts.tiny_model.tokenizer import write_tokenizer
from tests.data.conftest import make_aime_rows, make_math_rows, make_words, read_split, write_rows


def run(out: Path, *words: object) -> None:
    assert prepare.main(["--out", str(out), *map(str, words)]) == 0


@pytest.fixture
def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Returns what a refused call prints; it writes nothing."""

    def call(*words: object) -> str:
        capsys.readouterr()
        assert prepare.main(["--out", str(tmp_path / "refused"), *map(str, words)]) == 2
        assert not (tmp_path / "refused").exists()
        return capsys.readouterr().err

    return call


@pytest.fixture
def aime(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "aime.jsonl", make_aime_rows())


@pytest.fixture
def math(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "math.jsonl", make_math_rows(60))


def test_the_records_of_aime(tmp_path: Path, aime: Path) -> None:
    run(tmp_path, "--source", aime)
    train, evaluation = read_split(tmp_path, "train"), read_split(tmp_path, "eval")
    assert (len(train), len(evaluation)) == (72, 18)
    assert train[1]["prompt"].startswith("What is 3 times 2022, ") and "\\boxed{}" in train[1]["prompt"]
    assert json.loads(train[1]["label"]) == {"answer": "066", "split": "train"}
    assert (train[1]["datasource"], train[1]["id"]) == ("aime", "aime-2022-1-3")
    assert len({record["id"] for record in train + evaluation}) == 90
    for split, records in (("train", train), ("eval", evaluation)):
        assert len(read_records(tmp_path / f"{split}.jsonl", "prompt", "label", split)) == len(records)
    card = json.loads((tmp_path / "card.json").read_text())
    described = {name: file["sha256"] for name, file in card["files"].items()}
    described |= {aime.name: card["sources"][0]["sha256"]}
    assert described == {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in described}


def test_the_choice_from_math(tmp_path: Path, math: Path) -> None:
    run(tmp_path, "--source", math)
    assert sum(len(read_split(tmp_path, split)) for split in ("train", "eval")) == 60, "a file of one's own, whole"
    run(tmp_path, "--source", math, "--math-count", 45, "--levels", 4, 5)
    assert [len(read_split(tmp_path, split)) for split in ("train", "eval")] == [36, 9]
    run(tmp_path, "--source", math, "--math-count", 1000, "--eval-fraction", 0.5, "--levels", 5)
    assert [len(read_split(tmp_path, split)) for split in ("train", "eval")] == [15, 15]


def test_aime_and_math_to_train_on_and_aime_to_evaluate_on(tmp_path: Path, aime: Path, math: Path) -> None:
    run(tmp_path / "mixed", "--source", aime, "--train", math, "--math-count", 45, "--levels", 4, 5)
    run(tmp_path / "aime", "--source", aime)
    counts = Counter(record["datasource"] for record in read_split(tmp_path / "mixed", "train"))
    assert counts == {"aime": 72, "math": 45}
    assert read_split(tmp_path / "mixed", "eval") == read_split(tmp_path / "aime", "eval")
    card = json.loads((tmp_path / "mixed" / "card.json").read_text())
    assert [one["used_for"] for one in card["sources"]] == ["both", "train"]
    assert card["files"]["train.jsonl"]["datasource"] == counts
    assert card["left_out"] == {"beyond --math-count 45": 15}


@pytest.mark.parametrize(
    "change",
    [
        str.upper,
        lambda text: text.replace(" ", "\n  "),
        lambda text: unicodedata.normalize("NFD", text),
        lambda text: unicodedata.normalize("NFD", text.title()),
        lambda text: text.replace("7", "\N{FULLWIDTH DIGIT SEVEN}").replace("âge", "â\u200bge"),
    ],
)
def test_a_problem_to_train_and_to_evaluate_on_is_refused_or_left_out_of_train(tmp_path: Path, refuse, change) -> None:
    text = "Quel est l'âge de René, né à 7 heures?"
    assert change(text) != text
    others = [{"problem": make_words(number), "answer": 1} for number in range(4)]
    train = write_rows(tmp_path / "train.jsonl", [*others, {"problem": text, "answer": 7}])
    held_out = write_rows(tmp_path / "eval.jsonl", [{"problem": change(text), "answer": 7}])
    said = refuse("--train", train, "--eval", held_out)
    assert "--decontaminate" in said and f"{train}, line 5" in said and f"{held_out}, line 1" in said
    run(tmp_path / "out", "--train", train, "--eval", held_out, "--decontaminate")
    assert len(read_split(tmp_path / "out", "train")) == 4 and len(read_split(tmp_path / "out", "eval")) == 1
    run(
        tmp_path / "same", "--train", train, held_out, "--eval", write_rows(tmp_path / "other.jsonl", make_math_rows(1))
    )
    assert len(read_split(tmp_path / "same", "train")) == 5


def test_a_contest_place_in_both_is_refused_whatever_its_text(tmp_path: Path, aime: Path, refuse) -> None:
    run(tmp_path, "--source", aime)
    held_out = {read["id"] for read in read_split(tmp_path, "eval")}
    rows = [row | {"problem": f"In other words: {row['problem']}"} for row in make_aime_rows()]
    copy = write_rows(tmp_path / "copy.jsonl", rows)
    assert "--decontaminate" in refuse("--source", aime, "--train", copy)
    run(tmp_path, "--source", aime, "--train", copy, "--decontaminate")
    assert not held_out & {read["id"] for read in read_split(tmp_path, "train")}


def test_bad_rows_are_refused_with_the_remedy_first_or_left_out(tmp_path: Path, math: Path, refuse) -> None:
    rows = [f"Which day is {number}?,{answer}" for number, answer in enumerate(["Monday", "2024-03-12", "1-2-3"] * 20)]
    (tmp_path / "words.csv").write_text("\n".join(["problem,answer", *rows]))
    first, *lines = refuse("--source", tmp_path / "words.csv").splitlines()
    assert "60" in first and "--labels any" in first and "--skip-bad" in first and len(lines) == 4
    assert all(f"line {number}: " in line for number, line in zip((2, 3, 4), lines, strict=False))
    mixed = ("--source", math, tmp_path / "words.csv")
    assert "--labels any" in refuse(*mixed)
    run(tmp_path / "out", *mixed, "--skip-bad")
    assert len(json.loads((tmp_path / "out" / "card.json").read_text())["left_out"]["bad rows"]) == 60
    run(tmp_path / "out", "--source", tmp_path / "words.csv", "--labels", "any")
    assert {record["label"] for record in read_split(tmp_path / "out", "train")} == {"Monday", "2024-03-12", "1-2-3"}


def test_an_own_reward_gets_problems_and_answers_as_they_are_again_and_again(tmp_path: Path) -> None:
    tasks = [
        {"task": {"text": f"p{make_words(i)}"}, "gold": answer} for i, answer in enumerate([2**63, "a", [1], {"b": 2}])
    ]
    columns = ["--labels", "any", "--eval-fraction", 0.25, "--problem-column", "task.text", "--answer-column", "gold"]
    run(tmp_path / "a", "--source", write_rows(tmp_path / "own.jsonl", tasks), *columns)
    files = [word for split in ("train", "eval") for word in (f"--{split}", tmp_path / "a" / f"{split}.jsonl")]
    run(tmp_path / "b", *files, "--labels", "any", "--problem-column", "prompt", "--answer-column", "label")
    for folder in ("a", "b"):
        records = read_split(tmp_path / folder, "train") + read_split(tmp_path / folder, "eval")
        found = {record["prompt"]: record["label"] for record in records}
        labels = ["9223372036854775808", "a", "[1]", '{"b": 2}']
        assert found == {task["task"]["text"]: label for task, label in zip(tasks, labels, strict=True)}


def test_what_was_written_can_be_prepared_again(tmp_path: Path, math: Path) -> None:
    run(tmp_path / "a", "--source", math)
    files = [word for split in ("train", "eval") for word in (f"--{split}", tmp_path / "a" / f"{split}.jsonl")]
    run(tmp_path / "b", *files, "--problem-column", "prompt", "--answer-column", "label")
    for split in ("train", "eval"):
        first, again = ({(row["prompt"], row["label"]) for row in read_split(tmp_path / name, split)} for name in "ab")
        assert first == again


def test_the_output_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    rows = make_aime_rows() + make_math_rows(100) + make_math_rows(20)
    run(tmp_path / "one", "--source", write_rows(tmp_path / "one.jsonl", rows))
    random.Random(0).shuffle(rows)
    run(tmp_path / "two", "--source", write_rows(tmp_path / "two.jsonl", rows))
    for split in ("train", "eval"):
        assert (tmp_path / "one" / f"{split}.jsonl").read_bytes() == (tmp_path / "two" / f"{split}.jsonl").read_bytes()


def test_the_synthetic_task(tmp_path: Path, refuse) -> None:
    run(tmp_path, "--source", "synthetic", "--train-count", 40, "--eval-count", 12)
    train, evaluation = read_split(tmp_path, "train"), read_split(tmp_path, "eval")
    assert (len(train), len(evaluation)) == (40, 12)
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in evaluation}
    for record in evaluation:
        label = parse_label(record["label"])
        query = record["prompt"] + f" \\boxed{{{label.answer}}}"
        assert label.split == "eval" and reward_func([query], [record["prompt"]], [record["label"]])["rewards"] == 1.0
    assert "--train-count" in refuse("--source", "synthetic", "--train-count", 3000)


def test_long_prompts_are_left_out(tmp_path: Path, math: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "model").mkdir()
    write_tokenizer(tmp_path / "model")
    run(tmp_path / "all", "--source", math)
    encode = renderer(AutoTokenizer.from_pretrained(tmp_path / "model"), {})
    records = read_split(tmp_path / "all", "train")
    lengths = {record["id"]: len(encode(record["prompt"])) for record in records}
    limit = sorted(lengths.values())[20]
    run(tmp_path / "short", "--source", math, "--tokenizer", tmp_path / "model", "--prompt-max-len", limit)
    kept = {record["id"] for record in read_split(tmp_path / "short", "train")}
    assert kept == {id for id, length in lengths.items() if length <= limit} and len(kept) < len(records)


@pytest.mark.parametrize("words", [["--eval-fraction", "0"], ["--eval-fraction", "1"], ["--levels", "1"]])
def test_a_split_without_problems_is_refused(math: Path, words: list[str], refuse) -> None:
    assert "--train" in refuse()
    assert "split would be empty" in (said := refuse("--source", math, *words)) and "--eval-fraction" in said


def prepare_and_die(source: Path, out: Path, last: int) -> NoReturn:
    """Prepare, and kill this process in place of its rename of that number."""
    rename, renamed = os.replace, []

    def replace(old: Path, new: Path) -> None:
        renamed.append(new)
        if len(renamed) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(old, new)

    os.replace = replace
    run(out, "--source", source)
    os._exit(1)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_files_are_complete_whenever_the_process_is_killed(tmp_path: Path, aime: Path, last: int) -> None:
    out = tmp_path / "out"
    run(out, "--source", aime)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write_rows(aime, make_aime_rows()[:60])
    run(tmp_path / "after", "--source", aime)
    after = {path.name: path.read_bytes() for path in (tmp_path / "after").iterdir()}
    if not (child := os.fork()):
        prepare_and_die(aime, out, last)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (out / "card.json").exists()
    for name in ("train.jsonl", "eval.jsonl"):
        assert (out / name).read_bytes() in (before[name], after[name])
    run(out, "--source", aime)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == after, "nor is anything left beside them"
