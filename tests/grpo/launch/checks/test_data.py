"""Faults of prompts and labels are reported with their line and the remedy."""

import json
import os
import shlex
from pathlib import Path

import pytest

from data import prepare
from grpo.launch import data_files, rendering
from grpo.launch.rendering import Rendered
from grpo.rollout.prompts import renderer
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError
from scripts.tiny_model.tokenizer import write_tokenizer
from tests.grpo.launch.conftest import write_data

RENDER = rendering.render
USER = {"role": "user", "content": "1 + 1?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}


def chat(*messages: dict[str, object]) -> str:
    return json.dumps({"prompt": messages, "label": "2"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "1 + 1?"}', "line 2: 'label' is missing or empty"),
        ('{"prompt": "", "label": "2"}', "line 2: 'prompt' is missing or empty"),
        ('{"prompt": "1 + 1?", "label": null}', "line 2: 'label' is missing or empty"),
        ('{"prompt": [{"content": "1 + 1?"}], "label": "2"}', "line 2: 'prompt' is neither text nor messages"),
        (chat({"role": "user", "content": [{"type": "text", "text": "1"}]}), "'prompt' is neither text nor messages"),
        (
            chat({"role": "assistant", "content": "Hello!"}, USER),
            "line 2: 'prompt' has the role 'assistant' in message 1",
        ),
        (chat({"role": "narrator", "content": "Once."}, USER), "line 2: 'prompt' has the role 'narrator' in message 1"),
        (chat(USER, {"role": "system", "content": "Be brief."}), "line 2: 'prompt' has the role 'system' in message 2"),
        (
            chat(USER, CALL | {"tool_calls": [{"function": {"name": "f"}}]}, USER),
            "a tool call without id or function in",
        ),
        (chat(USER, CALL | {"tool_calls": ["f"]}, USER), "line 2: 'prompt' has a tool call without id or function in"),
        (
            chat(USER, CALL, {"role": "tool", "content": "3"}),
            "'prompt' has no tool_call_id of an earlier call in message 3",
        ),
        (chat(USER, CALL), "line 2: 'prompt' ends with the assistant"),
        ("{not json", "line 2 is not JSON"),
        ('{"prompt": "P", "label": "1", "label": "2"}', "line 2 is not JSON: an object has the key 'label' twice"),
        ("\ufeff{}", "line 2 is not JSON: Unexpected UTF-8 BOM"),
        ('{"prompt": "1 + 1?", "label": 1%s}' % ("0" * 5000), "line 2 is not JSON: Exceeds the limit"),
        ('{"prompt": "1 \\ud800", "label": "2"}', "surrogates not allowed"),
        ('{"n%s": 1}' % ("o" * 999), f"(fields: n{'o' * 199})"),
        ("[1, 2]", "line 2 is not a JSON object"),
    ],
)
def test_a_bad_line_of_data_is_named(setting, tmp_path: Path, line: str, message: str) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": "0 + 1?", "label": "1"}\n' + line + "\n")
    assert message in setting.find_problems(prompt_data=data)[0]


def test_a_conversation_with_tools_has_no_fault(tmp_path: Path) -> None:
    result = {"role": "tool", "tool_call_id": "a", "content": "3"}
    lines = [chat({"role": role, "content": "Count."}, USER, CALL, result, USER) for role in ("system", "developer")]
    (tmp_path / "good.jsonl").write_text("\n".join([*lines, chat(USER), chat(USER, CALL, result)]))
    assert len(data_files.read_records(tmp_path / "good.jsonl", "prompt", "label")) == 4


def test_all_lines_with_a_fault_are_named_at_once(setting, tmp_path: Path) -> None:
    lines = ["{}"] + [json.dumps({"prompt": f"{n}?", "label": "1"}) for n in range(7)] + ["["] * 2
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    assert "; 2 other lines with a fault: 9, 10\n" in setting.find_problems(prompt_data=tmp_path / "bad.jsonl")[0]


def make_label(split: str, answer: str = "7") -> str:
    return json.dumps({"answer": answer, "split": split})


def write_labels(path: Path, *labels: object) -> Path:
    rows = [{"prompt": f"{path.stem} {number}?", "label": label} for number, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("variable", "bad", "message"),
    [
        ("prompt_data", make_label("test"), "an unknown split"),
        ("prompt_data", make_label("train", ""), "no answer"),
        ("prompt_data", '{"answer": 1%s}' % ("0" * 5000), "the grader cannot read the answer"),
        ("prompt_data", make_label("train", "two apples"), "the grader cannot read the answer 'two apples'"),
        ("prompt_data", "N/A", "the grader cannot read the answer 'N/A'"),
        ("prompt_data", "2024-03-12", "the grader cannot read the answer '2024-03-12'"),
        ("prompt_data", "two", "the grader cannot read the answer 'two'"),
        ("prompt_data", "two apples", "the grader cannot read the answer 'two apples'"),
        ("prompt_data", make_label("eval"), "belongs to the eval split"),
        ("eval_dataset", make_label("test"), "an unknown split"),
        ("eval_dataset", make_label("train"), "belongs to the train split"),
        ("eval_dataset", "7", "belongs to the train split"),
        ("eval_dataset", 7, "belongs to the train split"),
    ],
)
def test_labels_are_read_like_the_reward_function_reads_them(setting, tmp_path: Path, variable, bad, message) -> None:
    good = {
        "prompt_data": write_labels(tmp_path / "good_train.jsonl", *[make_label("train"), "7"] * 4),
        "eval_dataset": write_labels(tmp_path / "good_eval.jsonl", make_label("eval")),
        "remote_rm_url": CHECKOUT / "reward" / "reward_func.py",
    }
    assert setting.find_problems(**good) == []
    split = "train" if variable == "prompt_data" else "eval"
    changed = good | {variable: write_labels(tmp_path / "bad.jsonl", *[make_label(split)] * 8, bad)}
    [problem] = setting.find_problems(**changed)
    assert "bad.jsonl, line 9: " in problem and message in problem
    remedy = problem.split("->")[1]
    assert "python -m data.prepare" in remedy
    if "cannot read" in message:
        assert "\\text{...}" in remedy and "--skip-bad" in remedy
    elif variable == "eval_dataset":
        assert 'JSON: {"answer": "42", "split": "eval"}' in remedy and "gold answer" not in problem
    else:
        assert 'the gold answer, or JSON: {"answer": "42", "split": "train"}' in remedy
    assert setting.find_problems(**changed | {"remote_rm_url": setting.flags["remote_rm_url"]}) == [], (
        "of another function"
    )


def test_without_a_label_key_our_reward_function_has_no_answers(setting) -> None:
    ours = CHECKOUT / "reward" / "reward_func.py"
    assert "line 1: a label has no answer" in setting.find_problems(remote_rm_url=ours, label_key=None)[0]


def test_a_prompt_to_train_and_to_evaluate_on_is_refused(setting, tmp_path: Path) -> None:
    data = write_data(tmp_path / "both.jsonl", 30, first=90)  # eval has 100 to 104
    [problem] = setting.find_problems(prompt_data=data)
    assert (
        "both.jsonl, line 11: " in problem
        and "eval.jsonl, line 1" in problem
        and problem.count("those of 4 other lines") == 1
    )
    assert "--decontaminate" in problem.split("->")[1]


@pytest.mark.parametrize("held_out", ["train.jsonl", "copy.jsonl", "none.jsonl"])
def test_the_remedy_for_data_without_held_out_problems_works(setting, tmp_path: Path, held_out: str) -> None:
    (tmp_path / "copy.jsonl").write_text(
        "".join(
            json.dumps({**row, "label": json.dumps({"answer": row["label"], "split": "eval"})}) + "\n"
            for row in map(json.loads, (tmp_path / "train.jsonl").read_text().splitlines())
        )
    )
    ours = {"remote_rm_url": CHECKOUT / "reward" / "reward_func.py"}
    [problem] = setting.find_problems(eval_dataset=tmp_path / held_out, **ours)
    command, variables = problem.partition("hold some out: ")[2].replace("FOLDER", str(tmp_path / "own")).split("; ")
    prepare.main(shlex.split(command)[3:])
    train, evaluation = (word.partition("=")[2] for word in variables.split()[-2:])
    assert setting.find_problems(prompt_data=train, eval_dataset=evaluation, **ours) == []


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_data_is_refused(setting, tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.jsonl").write_text(content)
    assert "is empty" in setting.find_problems(eval_dataset=tmp_path / "empty.jsonl")[0]


def test_a_pipe_of_problems_is_not_waited_for(setting, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert (
        "pipe.jsonl cannot be read (not a regular file; remove"
        in setting.find_problems(prompt_data=tmp_path / "pipe.jsonl")[0]
    )


def write_rows(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps({"label": "1"} | row) + "\n\n" for row in rows))
    return path


def test_duplicate_prompt_is_rejected(setting, tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}?"} for number in range(9)]
    twice = write_rows(tmp_path / "twice.jsonl", *rows, *rows)
    [problem] = setting.find_problems(prompt_data=twice)
    assert "twice.jsonl, line 19 repeats the prompt of line 1, and so do 8 others: both would draw the same" in problem
    [problem] = setting.find_problems(eval_dataset=write_rows(tmp_path / "eval.jsonl", *rows, {"prompt": "4?"}))
    assert "eval.jsonl, line 19 repeats the prompt of line 9: both would count as one problem" in problem
    assert "python -m data.prepare" in problem.split("->")[1]


def test_an_id_of_two_held_out_problems_is_refused(setting, tmp_path: Path) -> None:
    rows = [{"prompt": "a?", "id": "one"}, {"prompt": "b?", "id": "one"}, {"prompt": "c?"}, {"prompt": "d?"}]
    [problem] = setting.find_problems(eval_dataset=write_rows(tmp_path / "eval.jsonl", *rows))
    assert "eval.jsonl, line 3 repeats the id of line 1: both would count as one problem" in problem


def test_prompts_that_would_be_cut_are_refused(setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [*[64] * 20, 64, 65, 10, 90, 64]  # 20 to train on
    rendered = [Rendered(length, f"{number}?") for number, length in enumerate(lengths)]
    monkeypatch.setattr(rendering, "render", lambda *_: rendered)
    [problem] = setting.find_problems()
    assert "eval.jsonl: 2 of 5 prompts have more than PROMPT_MAX_LEN 64 tokens, for example line 2" in problem
    assert "set PROMPT_MAX_LEN to 90" in problem.split("->")[1]


def test_prompts_are_rendered_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    monkeypatch.undo()
    write_tokenizer(tmp_path)
    prompts = ["What is 3 plus 4?", "a", [{"role": "user", "content": "a"}]]
    longer, plain, chat = rendering.render(str(tmp_path), prompts, {"reasoning_effort": "high"})
    assert "Reasoning: high" in longer.text and longer.tokens > plain.tokens and plain == chat
    encode = renderer(AutoTokenizer.from_pretrained(tmp_path), {"reasoning_effort": "high"})
    assert [each.tokens for each in (longer, plain, chat)] == [len(encode(prompt)) for prompt in prompts]


@pytest.mark.parametrize(
    "prompt",
    [
        "102 + 1?\n",
        " 102  + 1?",
        [{"role": "user", "content": "102 + 1?"}],
        [{"content": "102 + 1?\n", "role": "user", "name": "a field that no template reads"}],
    ],
)
@pytest.mark.parametrize("is_here", [True, False])
def test_a_leak_is_found_however_it_is_written(setting, tmp_path: Path, monkeypatch, prompt, is_here) -> None:
    monkeypatch.setattr(rendering, "render", _render)
    if not is_here:
        (tmp_path / "model" / "tokenizer.json").unlink()
    data = tmp_path / "train.jsonl"
    data.write_text(data.read_text() + json.dumps({"prompt": prompt, "label": "103"}) + "\n")
    [problem] = [each for each in setting.find_problems() if "is also in" in each]
    assert "train.jsonl, line 21: the prompt is also in" in problem and "eval.jsonl, line 3" in problem


def _render(folder, prompts, variables) -> list[Rendered]:
    """As with a template that reads the role and the content."""
    chats = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in prompts]
    return [
        Rendered(8, "".join(f"<|start|>{each['role']}<|message|>{each['content']}" for each in chat)) for chat in chats
    ]


def test_unusable_tokenizer_is_a_problem(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "render", RENDER)  # of a tokenizer.json that is an empty object
    assert any("cannot render prompts" in problem for problem in setting.find_problems())


def test_a_template_that_does_not_end_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("START_SECONDS", "PROMPT_SECONDS"):
        monkeypatch.setattr(rendering, name, 0.0)
    with pytest.raises(UserError, match="took more than 0 s for 1 prompt: correct the chat template"):
        RENDER(str(tmp_path), ["How many?"], {})


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + "{% endfor %}" * 3


@pytest.mark.parametrize(
    ("template", "longest", "what"),
    [(LOOPS, 0.5, "a prompt takes more than 0.5 s .* the longest has 11 bytes"), ("{% if", 60, "jinja2.")],
)
def test_a_faulty_template_is_named_and_ended(template, longest, what, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rendering, "LONGEST", longest)
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(UserError, match=what) as refused:
        RENDER(str(tmp_path), ["How many?"], {})
    assert refused.value.problem.remedy.startswith("correct the chat template")


def test_a_broken_package_is_not_blamed_on_the_tokenizer(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('undefined symbol')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"broken \(ImportError: undefined symbol\): run ./scripts/setup.sh"):
        RENDER(str(tmp_path), ["How many?"], {})


def test_a_tokenizer_that_names_code_is_refused_for_that_alone(setting, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rendering, "render", RENDER)
    write_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"auto_map": {}, "chat_template": ""}')
    assert not any("cannot render" in problem for problem in setting.find_problems()), "check_model refuses it"


def test_a_broken_tokenizer_is_not_blamed_if_no_file_can_be_read(setting, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rendering, "render", RENDER)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{")
    problems = setting.find_problems(prompt_data=broken, eval_dataset=broken)
    assert len(problems) == 2 and not [problem for problem in problems if "cannot render prompts" in problem]
