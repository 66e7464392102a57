"""Faults of prompts, labels and batch sizes are reported with the setting, the line and the remedy."""

import itertools
import json
import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from data import prepare
from data.sources import is_gold
from grpo.launch import rendering
from grpo.launch.checks.data import check_batches, read_records
from grpo.launch.rendering import Rendered
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import Problem, UserError
from scripts.tiny_model.tokenizer import write_tokenizer
from tests.grpo.launch.conftest import write_data

RENDER = rendering.render
SIZES = ["--rollout_batch_size", "--n_samples_per_prompt", "--actor_num_gpus_per_node", "--train_batch_size"]
SIZES += ["--micro_train_batch_size", "--micro_rollout_batch_size"]
OURS = {"remote_rm_url": CHECKOUT / "reward" / "reward_func.py"}
USER = {"role": "user", "content": "1 + 1?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "3"}


def write_rows(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('{"prompt": "1 + 1?"}', "'label' is missing"),
        ('{"prompt": "1 + 1?", "label": null}', "'label' is missing"),
        ('{"prompt": "", "label": "2"}', "'prompt' is missing"),
        ('{"question": "1 + 1?", "answer": "2"}', "fields: question, answer"),
        (json.dumps({"prompt": [{"role": "user", "content": [{"type": "text"}]}], "label": "2"}), "neither text nor"),
        (json.dumps({"prompt": [{"role": "narrator", "content": "Once."}, USER], "label": "2"}), "'narrator'"),
        (json.dumps({"prompt": [USER, {"role": "system", "content": "x"}], "label": "2"}), "'system'"),
        (json.dumps({"prompt": [{"role": "assistant", "content": "Welcome."}, USER], "label": "2"}), "'assistant'"),
        (json.dumps({"prompt": [USER, CALL | {"tool_calls": ["f"]}, USER], "label": "2"}), "a tool call"),
        (json.dumps({"prompt": [USER, CALL, RESULT | {"tool_call_id": "b"}], "label": "2"}), "no tool_call_id"),
        (json.dumps({"prompt": [USER, CALL], "label": "2"}), "ends with the assistant"),
        ("{not json", "is not JSON"),
        ('{"prompt": "P", "label": "1", "label": "2"}', "twice"),
        ("\ufeff{}", "BOM"),
        ('{"prompt": "1 \\ud800", "label": "2"}', "surrogates"),
        ("[1, 2]", "is not a JSON object"),
    ],
)
def test_a_bad_line_of_data_is_named(setting, tmp_path: Path, line: str, kind: str) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": "0 + 1?", "label": "1"}\n' + line + "\n")
    problem = setting.find_problems(prompt_data=data)[0]
    assert problem.startswith("TRAIN_DATA: ") and "line 2" in problem and kind in problem and "->" in problem


def test_a_conversation_with_tools_has_no_fault(tmp_path: Path) -> None:
    chats = [[{"role": role, "content": "Count."}, USER, CALL, RESULT, USER] for role in ("system", "developer")]
    write_rows(tmp_path / "good.jsonl", *({"prompt": chat, "label": "2"} for chat in [*chats, [USER, CALL, RESULT]]))
    assert len(read_records(tmp_path / "good.jsonl", "prompt", "label")) == 3


@pytest.mark.parametrize(
    ("flag", "label", "remedy"),
    [
        ("prompt_data", {"answer": "7", "split": "test"}, '"split": "train"'),
        ("prompt_data", {"answer": ""}, '"split": "train"'),
        ("prompt_data", {"answer": "7", "split": "eval"}, '"split": "train"'),
        ("eval_dataset", {"answer": "7", "split": "train"}, '"split": "eval"'),
        ("eval_dataset", "7", '"split": "eval"'),
        ("prompt_data", "N/A", "\\text{...}"),
        ("prompt_data", "2024-03-12", "\\text{...}"),
        ("prompt_data", {"answer": "two apples"}, "\\text{...}"),
    ],
)
def test_labels_that_our_reward_could_not_use_are_refused(setting, tmp_path: Path, flag, label, remedy) -> None:
    split = "train" if flag == "prompt_data" else "eval"
    rows = [{"prompt": f"{n}?", "label": json.dumps({"answer": "7", "split": split})} for n in range(8)]
    text = json.dumps(label) if isinstance(label, dict) else label
    bad = write_rows(tmp_path / "bad.jsonl", *rows, {"prompt": "8?", "label": text})
    good = {"eval_dataset": write_rows(tmp_path / "held.jsonl", rows[0] | {"prompt": "h"}), **OURS}
    problems = setting.find_problems(**good | {flag: bad})
    [problem] = [each for each in problems if "bad.jsonl" in each]
    assert problem.startswith(f"{split.upper()}_DATA: ") and "line 17: " in problem and remedy in problem.split("->")[1]
    assert setting.find_problems(**{flag: bad}) == [], "of another function"


def test_no_answer_that_the_grader_reads_is_refused(tmp_path: Path) -> None:
    golds = ["\\frac{1}{2}", "3.5", "\\text{Monday}", "(1,2)", "10\\%", "1,000", "[0,1)", "A", "12^\\circ", "xyz", "n"]
    for gold in golds:
        assert is_gold(gold), "of no use here"
        file = write_rows(tmp_path / "rows.jsonl", {"prompt": "?", "label": gold})
        assert read_records(file, "prompt", "label", "train")


def test_one_file_to_train_and_to_evaluate_on_is_refused(setting) -> None:
    for flags in ({}, OURS):
        [problem] = setting.find_problems(eval_dataset=setting.flags["prompt_data"], **flags)
        assert "EVAL_DATA" in problem.split("->")[1]


@pytest.mark.parametrize("content", ["", "\n\n", None])
def test_data_that_is_empty_or_missing_is_refused(setting, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "none.jsonl").write_text(content)
    for flag, name in (("prompt_data", "TRAIN_DATA"), ("eval_dataset", "EVAL_DATA")):
        assert setting.find_problems(**{flag: tmp_path / "none.jsonl"})[0].startswith(f"{name}: ")
    assert "data.prepare" in setting.find_problems(prompt_data="/data.parquet")[0]


def test_the_remedy_for_data_without_held_out_problems_works(setting, tmp_path: Path) -> None:
    [problem] = setting.find_problems(eval_dataset=tmp_path / "none.jsonl", **OURS)
    command, variables = problem.partition("hold some out: ")[2].replace("FOLDER", str(tmp_path / "own")).split("; ")
    prepare.main(shlex.split(command)[3:])
    train, evaluation = (word.partition("=")[2] for word in variables.split()[-2:])
    assert setting.find_problems(prompt_data=train, eval_dataset=evaluation, **OURS) == []


def test_repeated_prompts_and_ids_are_refused(setting, tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}?", "label": "1", "id": str(number)} for number in range(9)]
    [problem] = setting.find_problems(prompt_data=write_rows(tmp_path / "twice.jsonl", *rows, *rows))
    assert "TRAIN_DATA: line 19 repeats the prompt of line 1" in problem
    for change in ({"prompt": "4?", "id": "x"}, {"prompt": "x", "id": "4"}):
        again = write_rows(tmp_path / "eval.jsonl", *rows, {"label": "1", **change})
        [problem] = setting.find_problems(eval_dataset=again)
        assert "EVAL_DATA: line 19 repeats" in problem and "line 9" in problem


def test_prompts_that_would_be_cut_are_refused(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = [Rendered(length, f"{number}?") for number, length in enumerate([*[64] * 20, 64, 65, 10, 90, 64])]
    monkeypatch.setattr(rendering, "render", lambda *_: rendered)
    [problem] = setting.find_problems()
    assert problem.startswith("EVAL_DATA: 2 of 5") and "line 2" in problem and "--prompt_max_len to 90" in problem


@pytest.mark.parametrize(
    "prompt", ["102 + 1?\n", " 102  + 1?", [{"content": "102 + 1?\n", "role": "user", "name": "of no template"}]]
)
def test_a_leak_is_found_however_it_is_written(setting, tmp_path: Path, monkeypatch, prompt) -> None:
    def render(folder, prompts, variables) -> list[Rendered]:
        chats = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in prompts]
        return [Rendered(8, "".join(f"<|start|>{m['role']}<|message|>{m['content']}" for m in chat)) for chat in chats]

    monkeypatch.setattr(rendering, "render", render)
    data = write_data(tmp_path / "both.jsonl", 20)
    data.write_text(data.read_text() + json.dumps({"prompt": prompt, "label": "103"}) + "\n")
    [problem] = setting.find_problems(prompt_data=data)
    assert "line 21" in problem and "EVAL_DATA, line 3" in problem and "--decontaminate" in problem.split("->")[1]


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("chat_template.jinja", "{% if", "template"),
        ("tokenizer.json", "{}", "download"),
        ("tokenizer_config.json", '{"tokenizer_class": "TokenizersBackend"}', "PreTrainedTokenizerFast"),
    ],
)
def test_a_faulty_template_or_tokenizer_is_named(tmp_path: Path, file: str, text: str, names: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match="cannot render") as refused:
        RENDER(str(tmp_path), ["How many?"], {})
    assert names in refused.value.problem.remedy


def test_batch_sizes_pass_if_every_rank_gets_as_much_in_whole_batches(setting) -> None:
    """Against a simulation: deal the rollouts to the ranks, and cut each share into micro-batches and batches."""
    config = setting.make_config()

    def is_even(prompts: int, count: int, ranks: int, batch: int, micro: int, micro_rollout: int) -> bool:
        shares = {len(range(rank, prompts * count, ranks)) for rank in range(ranks)}
        pieces = (micro_rollout, micro, max(batch // ranks, 1))
        return len(shares) == 1 and batch % (micro * ranks) == 0 and not any(min(shares) % piece for piece in pieces)

    def find(*sizes: int, prompts: int | None = None) -> list[Problem]:
        args = Namespace(**vars(config.args) | {name[2:]: size for name, size in zip(SIZES, sizes, strict=True)})
        return list(check_batches(replace(config, args=args), prompts))

    seen = set()
    for sizes in itertools.product((3, 8), (1, 2, 4), (1, 2, 3), (4, 6, 16, 32), (1, 2, 3), (1, 4)):
        problems = find(*sizes)
        assert (not problems) == (is_even(*sizes) and sizes[1] > 1), (sizes, problems)
        seen.add(not problems)
        for prompts in (1, 5, 1000):
            for problem in find(*sizes, prompts=prompts):
                words = problem.remedy.removeprefix("set ").partition(",")[0].split()
                better = dict(zip(SIZES, sizes, strict=True)) | dict(
                    zip(words[::2], map(int, words[1::2]), strict=True)
                )
                assert find(*better.values(), prompts=prompts) == [], (sizes, prompts, problem)
    assert seen == {True, False}
    for given, nearest in ((15, 16), (6, 8), (33, 32)):
        [problem] = find(8, 4, 2, given, 1, 4)
        assert problem.remedy == f"set --train_batch_size {nearest}", "of two that are as near, the larger"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"rollout_batch_size": 24}, "--rollout_batch_size"),
        ({"lr_warmup_ratio": 1.0}, "--lr_warmup_ratio"),
        ({"lr_warmup_ratio": 0.95, "max_steps": 2}, "--lr_warmup_ratio"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(setting, changes: dict[str, object], names: str) -> None:
    assert any(names in problem for problem in setting.find_problems(**changes))
