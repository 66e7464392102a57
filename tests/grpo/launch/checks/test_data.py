"""What can be wrong with prompts and labels is found, with its line and the remedy."""

import json
from pathlib import Path

import pytest

from grpo.environment import CHECKOUT


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "1 + 1?"}', "line 2: no 'label'"),
        ('{"prompt": "", "label": "2"}', "line 2: no 'prompt'"),
        ('{"prompt": "1 + 1?", "label": null}', "line 2: no 'label'"),
        ("{not json", "line 2: no JSON"),
        ("[1, 2]", "line 2: no JSON object"),
    ],
)
def test_a_bad_line_of_data_is_named(setting, tmp_path: Path, line: str, message: str) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": "0 + 1?", "label": "1"}\n' + line + "\n")
    assert message in setting.problems(prompt_data=data)[0]


def label(split: str, answer: str = "7") -> str:
    return json.dumps({"answer": answer, "split": split})


def write_labels(path: Path, *labels: object) -> Path:
    rows = [{"prompt": f"{path.stem} {number}?", "label": label} for number, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("variable", "bad", "message"),
    [
        ("prompt_data", label("test"), "an unknown split"),
        ("prompt_data", label("train", ""), "no answer"),
        ("prompt_data", label("eval"), "of the eval split"),
        ("eval_dataset", label("test"), "an unknown split"),
        ("eval_dataset", label("train"), "of the train split"),
        ("eval_dataset", "7", "of the train split"),
        ("eval_dataset", 7, "of the train split"),
    ],
)
def test_labels_are_read_as_our_reward_function_reads_them(setting, tmp_path: Path, variable, bad, message) -> None:
    good = {
        "prompt_data": write_labels(tmp_path / "good_train.jsonl", *[label("train"), "7"] * 4),
        "eval_dataset": write_labels(tmp_path / "good_eval.jsonl", label("eval")),
        "remote_rm_url": CHECKOUT / "reward" / "reward_func.py",
    }
    assert setting.problems(**good) == []
    split = "train" if variable == "prompt_data" else "eval"
    changed = good | {variable: write_labels(tmp_path / "bad.jsonl", *[label(split)] * 8, bad)}
    [problem] = setting.problems(**changed)
    assert "bad.jsonl, line 9: " in problem and message in problem
    assert "python -m data.prepare" in problem.split("->")[1]
    assert setting.problems(**changed | {"remote_rm_url": setting.flags["remote_rm_url"]}) == [], "of another function"


def test_without_a_label_key_our_reward_function_has_no_answers(setting) -> None:
    ours = CHECKOUT / "reward" / "reward_func.py"
    assert "line 1: a label has no answer" in setting.problems(remote_rm_url=ours, label_key=None)[0]


def test_a_prompt_to_train_and_to_evaluate_on_is_refused(setting, make_data, tmp_path: Path) -> None:
    data = make_data(tmp_path / "both.jsonl", 30, first=90)  # eval has 100 to 104
    [problem] = setting.problems(prompt_data=data)
    assert "both.jsonl, line 11: " in problem and "eval.jsonl, line 1" in problem and "4 others" in problem
    assert "--decontaminate" in problem.split("->")[1]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_data_is_refused(setting, tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.jsonl").write_text(content)
    assert "is empty" in setting.problems(eval_dataset=tmp_path / "empty.jsonl")[0]
