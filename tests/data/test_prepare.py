"""The whole preparation: records, the card, refusals, and files that are whole or absent."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

from data.instructions import INSTRUCTIONS
from data.prepare import Options, Source, main, prepare
from grpo.launch.data_files import read_records
from grpo.stack.problem import UserError
from reward.labels import parse_label
from reward.reward_func import reward_func
from scripts.tiny_model.tokenizer import write_tokenizer
from tests.data.conftest import make_aime_rows, make_math_rows, make_words, read_split, write_rows

ROOT = Path(__file__).parents[2]


def prepare_files(out: Path, *files: Path, train: tuple[Path, ...] = (), **options) -> dict:
    sources = [Source(str(file)) for file in files] + [Source(str(file), "train") for file in train]
    return prepare(sources, out, Options(**options))


def test_records_of_an_aime_file(tmp_path: Path) -> None:
    card = prepare_files(tmp_path / "out", write_rows(tmp_path / "aime.jsonl", make_aime_rows()))
    train, evaluation = read_split(tmp_path / "out", "train"), read_split(tmp_path / "out", "eval")
    assert (len(train), len(evaluation)) == (72, 18)
    assert train[1]["prompt"].startswith("What is 3 times 2022, ")
    assert "\\boxed{}" in train[1]["prompt"]
    assert json.loads(train[1]["label"]) == {"answer": "066", "split": "train"}
    assert (train[1]["datasource"], train[1]["id"]) == ("aime", "aime-2022-1-3")
    assert all(parse_label(record["label"]).split == "eval" for record in evaluation)
    assert len({record["id"] for record in train + evaluation}) == 90
    assert json.loads((tmp_path / "out" / "card.json").read_text()) == card


def test_records_of_a_math_file(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "math.jsonl", make_math_rows(60))
    card = prepare_files(tmp_path / "out", source)
    assert [card["files"][name]["records"] for name in ("train.jsonl", "eval.jsonl")] == [36, 9]
    assert read_split(tmp_path / "out", "train")[0]["prompt"].endswith(INSTRUCTIONS["math"])
    card = prepare_files(tmp_path / "all", source, math_count=None, eval_fraction=0.5)
    assert [card["files"][name]["records"] for name in ("train.jsonl", "eval.jsonl")] == [30, 30]


def test_aime_and_math_to_train_on_and_aime_to_evaluate_on(tmp_path: Path) -> None:
    aime, math = (
        write_rows(tmp_path / "aime.jsonl", make_aime_rows()),
        write_rows(tmp_path / "math.jsonl", make_math_rows(60)),
    )
    card = prepare_files(tmp_path / "mixed", aime, train=(math,))
    assert Counter(record["datasource"] for record in read_split(tmp_path / "mixed", "train")) == {
        "aime": 72,
        "math": 45,
    }
    prepare_files(tmp_path / "aime", aime)
    assert read_split(tmp_path / "mixed", "eval") == read_split(tmp_path / "aime", "eval")
    about_train = card["files"]["train.jsonl"]
    assert about_train["source"] == {"aime.jsonl": 72, "math.jsonl": 45}
    assert about_train["year"] == {"2022": 24, "2023": 24, "2024": 24}
    assert about_train["level"] == {"4": 23, "5": 22} or about_train["level"] == {"4": 22, "5": 23}
    assert set(about_train["subject"].values()) == {15}
    assert [one["used_for"] for one in card["sources"]] == ["both", "train"]
    assert card["left_out"] == {"beyond the 45 of MATH": 15}


def test_a_problem_of_eval_among_those_to_train_on(tmp_path: Path) -> None:
    aime = write_rows(tmp_path / "aime.jsonl", make_aime_rows())
    prepare_files(tmp_path / "aime", aime)
    leaked = read_split(tmp_path / "aime", "eval")[0]
    text = leaked["prompt"].removesuffix(INSTRUCTIONS["aime"])
    copies = [{"problem": text + " Why?", "answer": parse_label(leaked["label"]).answer}]
    own = write_rows(tmp_path / "own.jsonl", copies + [{"problem": make_words(i), "answer": "1"} for i in range(5)])
    with pytest.raises(UserError, match=rf"1 problems(.|\n)*own.jsonl, line 1\) is .*{leaked['id']} \(.*line"):
        prepare_files(tmp_path / "out", aime, train=(own,))
    assert not (tmp_path / "out").exists()
    card = prepare_files(tmp_path / "out", aime, train=(own,), decontaminate=True)
    assert len(read_split(tmp_path / "out", "train")) == 72 + 5 and len(card["left_out"]["also in eval"]) == 1


def test_a_problem_added_to_train_twice_is_kept_once(tmp_path: Path) -> None:
    aime = write_rows(tmp_path / "aime.jsonl", make_aime_rows())
    card = prepare_files(tmp_path / "out", aime, train=(aime,), decontaminate=True)
    assert len(read_split(tmp_path / "out", "train")) == 72 and len(read_split(tmp_path / "out", "eval")) == 18
    assert len(card["left_out"]["repeated"]) == 72 and len(card["left_out"]["also in eval"]) == 18


def test_bad_rows_are_refused_all_at_once_or_left_out(tmp_path: Path) -> None:
    bad = ["{", json.dumps({"problem": "P", "answer": "{1"}), json.dumps(make_math_rows(1)[0] | {"answer": "9"})]
    source = write_rows(tmp_path / "math.jsonl", make_math_rows(10))
    source.write_text(source.read_text() + "\n".join(bad) + "\n")
    with pytest.raises(UserError, match=r"3 bad rows:(.|\n)*--skip-bad") as refused:
        prepare_files(tmp_path / "out", source)
    for number, reason in ((11, ": is not JSON"), (12, ": has an answer"), (1, ""), (13, "")):
        assert f"{source}, line {number}{reason}" in str(refused.value)
    assert "another answer" in str(refused.value)
    assert not (tmp_path / "out").exists()
    card = prepare_files(tmp_path / "out", source, skip_bad=True)
    assert len(card["left_out"]["bad rows"]) == 3
    assert sum(file["records"] for file in card["files"].values()) == 9


def test_the_output_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    rows = make_aime_rows() + make_math_rows(100) + make_math_rows(20)
    prepare_files(tmp_path / "one", write_rows(tmp_path / "one.jsonl", rows))
    random.Random(0).shuffle(rows)
    prepare_files(tmp_path / "two", write_rows(tmp_path / "two.jsonl", rows))
    for split in ("train", "eval"):
        assert (tmp_path / "one" / f"{split}.jsonl").read_bytes() == (tmp_path / "two" / f"{split}.jsonl").read_bytes()


def test_the_output_is_the_same_on_every_run_and_the_card_describes_it(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "aime.jsonl", make_aime_rows())
    card = prepare_files(tmp_path / "out", source)
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(first) == {"train.jsonl", "eval.jsonl", "card.json"}
    for name, file in card["files"].items():
        assert file["sha256"] == hashlib.sha256(first[name]).hexdigest()
    assert card["sources"][0]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    command = [sys.executable, "-m", "data.prepare", "--source", str(source), "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, cwd=ROOT)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == first


def test_the_synthetic_task(tmp_path: Path) -> None:
    card = prepare([Source("synthetic")], tmp_path / "out", Options(train_count=40, eval_count=12))
    train, evaluation = read_split(tmp_path / "out", "train"), read_split(tmp_path / "out", "eval")
    assert (len(train), len(evaluation)) == (40, 12)
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in evaluation}
    assert card["files"]["eval.jsonl"]["datasource"] == {"synthetic": 12}
    for record in evaluation:
        label = parse_label(record["label"])
        assert label.split == "eval"
        query = record["prompt"] + f" \\boxed{{{label.answer}}}"
        assert reward_func([query], [record["prompt"]], [record["label"]])["rewards"] == 1.0
    with pytest.raises(UserError, match="2000"):
        prepare([Source("synthetic")], tmp_path / "many", Options(train_count=3000))


def test_the_launcher_accepts_what_is_written(tmp_path: Path) -> None:
    prepare_files(tmp_path, write_rows(tmp_path / "aime.jsonl", make_aime_rows()))
    read = [read_records(tmp_path / f"{split}.jsonl", "prompt", "label", split) for split in ("train", "eval")]
    assert [len(records) for records in read] == [72, 18]


def prepare_and_die(source: Path, out: Path, last: int) -> NoReturn:
    """Prepare, and kill this process in place of its rename of that number."""
    rename, renamed = os.replace, []

    def replace(old: Path, new: Path) -> None:
        renamed.append(new)
        if len(renamed) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(old, new)

    os.replace = replace
    prepare([Source(str(source))], out)
    os._exit(1)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_files_are_complete_whenever_the_process_is_killed(tmp_path: Path, last: int) -> None:
    source, out = write_rows(tmp_path / "aime.jsonl", make_aime_rows()), tmp_path / "out"
    prepare_files(out, source)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write_rows(source, make_aime_rows()[:60])
    prepare_files(tmp_path / "after", source)
    after = {path.name: path.read_bytes() for path in (tmp_path / "after").iterdir()}
    if not (child := os.fork()):
        prepare_and_die(source, out, last)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (out / "card.json").exists()
    for name in ("train.jsonl", "eval.jsonl"):
        assert (out / name).read_bytes() in (before[name], after[name])
    assert (out / "train.jsonl").read_bytes() == (before if last == 1 else after)["train.jsonl"]
    prepare_files(out, source)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == after, "nor is anything left beside them"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aime, math = (
        write_rows(tmp_path / "aime.jsonl", make_aime_rows()),
        write_rows(tmp_path / "math.jsonl", make_math_rows(60)),
    )
    (tmp_path / "tokenizer").mkdir()
    write_tokenizer(tmp_path / "tokenizer")
    options = ["--math-count", "30", "--tokenizer", str(tmp_path / "tokenizer"), "--prompt-max-len", "4096"]
    assert main(["--source", str(aime), "--train", str(math), "--out", str(tmp_path / "out"), *options]) == 0
    printed = capsys.readouterr()
    assert "train.jsonl: 102 records (aime 72, math 30)" in printed.out and "tokens" in printed.out
    assert "beyond the 30 of MATH): 30" in printed.out
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["prompt_tokens"]["limit"] == 4096 and card["prompt_tokens"]["train"]["max"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give --source"),
        (["--source", "a.jsonl", "--prompt-max-len", "9"], "need --tokenizer"),
        (["--source", "a.jsonl", "--math-count", "0"], "--math-count"),
    ],
)
def test_a_bad_call(tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "out"), *options])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "not a file"),
        ("a.jsonl", "", "is empty: give a file with a row for each problem"),
        ("a.jsonl", "\n\n", "is empty: give a file with a row for each problem"),
        ("a.jsonl", json.dumps(make_math_rows(1)[0]), "would be empty"),
        ("out", "", "out is a file: name a folder"),
    ],
)
def test_rejection_sets_the_exit_code_and_prints_a_message(
    tmp_path: Path, name: str, content: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["--source", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").is_dir()


def test_a_reward_of_ones_own_gets_problems_and_answers_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("question,answer\nReverse lamp.,pmal\nReverse cat.,tac\nSay N/A.,N/A\n")
    with pytest.raises(UserError, match="--labels any"):
        prepare_files(tmp_path / "out", tmp_path / "words.csv")
    prepare_files(tmp_path / "out", tmp_path / "words.csv", labels="any", eval_fraction=0.3)
    [held_out], trained = read_split(tmp_path / "out", "eval"), read_split(tmp_path / "out", "train")
    found = {record["prompt"]: json.loads(record["label"])["answer"] for record in (held_out, *trained)}
    assert found == {"Reverse lamp.": "pmal", "Reverse cat.": "tac", "Say N/A.": "N/A"}
    objects = [{"problem": f"p{make_words(i)}", "answer": {"tests": [i]}} for i in range(5)]
    prepare_files(tmp_path / "objects", write_rows(tmp_path / "o.jsonl", objects), labels="any")
    prepare_files(tmp_path / "again", tmp_path / "objects" / "train.jsonl", labels="any")  # reads its own output
    labels = [json.loads(record["label"])["answer"] for record in read_split(tmp_path / "again", "train")]
    assert len(labels) == 3 and set(labels) <= {json.dumps({"tests": [i]}) for i in range(5)}
