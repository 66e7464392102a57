import pytest

from grpo.run.run_state import Run
from scripts.report import problems, samples
from scripts.report.runs import read
from tests.scripts.report.conftest import CHANNELS, make_sample, write_lines


def join_shown(pieces) -> str:
    return "".join(piece.text for piece in pieces if not piece.is_header)


def test_prompt_thinking_and_answer_are_separate():
    made = samples.describe(make_sample(4, 1.0, 0.9, CHANNELS.format("I think of 5 < 6", "\\boxed{5}")), "longest")
    assert join_shown(made.prompt) == made.about == "What is 4 plus 1?"
    assert join_shown(made.thinking) == "I think of 5 < 6" and join_shown(made.answer) == "\\boxed{5}"
    assert (made.correct, made.gold, made.why) == (True, "5", "longest") and ("reward", "0.9") in made.numbers


def test_a_response_without_a_final_message():
    cut = "<|channel|>analysis<|message|>still thinking"
    made = samples.describe(make_sample(1, 0.0, 0.0, cut) | {"correct": None, "label": "x", "prompt": None}, "")
    assert made.answer is None and join_shown(made.thinking) == "still thinking"
    assert (made.correct, made.gold, made.prompt, made.about) == (None, "x", [], "")


def test_a_response_of_another_model():
    thinking, answer = samples.split("<think>why</think>It is 5")
    assert (thinking, answer) == ("<think>why</think>", "It is 5")


def test_no_text_is_lost():
    text = "a<|start|>user<|message|>1 <| 2 <b>\n<|channel|>" + "x" * 200
    assert "".join(piece.text for piece in samples.pieces(text)) == text


def test_the_middle_of_a_long_text_is_left_out():
    text = "begin" + "x" * 100_000 + "end"
    made = join_shown(samples.pieces(text))
    assert len(made) < samples.LONGEST + 100 and made.startswith("begin") and made.endswith("end")
    assert f"{len(text) - samples.LONGEST} characters left out" in made


def test_the_extremes_of_a_step():
    rows = [make_sample(n, float(n % 2), reward) for n, reward in enumerate([0.1, 0.9, 0.4, 0.6, 0.2, 0.7])]
    rows[4]["response_length"] = 999.0
    chosen = {why: row for row, why in samples.extremes(rows)}
    assert chosen["highest reward of the wrong ones"] is rows[2]
    assert chosen["lowest reward of the right ones, of middle length"] is rows[3]
    assert chosen["longest"] is rows[4]
    assert samples.extremes([]) == []
    ((only, why),) = samples.extremes([{"response": "x", "correct": None}])
    assert only["response"] == "x" and "longest" in why


def test_rollouts_without_a_grade_are_told_by_their_reward():
    rows = [make_sample(n, 0.0, reward) | {"correct": None} for n, reward in enumerate([0.1, 0.9, 0.4])]
    grades = {why: samples.describe(row, why).grade for row, why in samples.extremes(rows)}
    assert grades["highest reward, of middle length"] == "reward 0.9" and grades["lowest reward"] == "reward 0.1"


def test_files_are_spread_over_the_run(make_run):
    folder = make_run()
    for step in range(1, 100):
        write_lines(folder / "samples" / f"step_{step}.jsonl", [make_sample(1, 1.0, 1.0)])
    (folder / "samples" / "step_50.jsonl").write_text("")
    groups = samples.groups(read([folder])[0], 1)
    assert [group.title.rpartition(" ")[2] for group in groups] == ["1", "99", "0", "30"]
    assert len(samples.groups(read([folder])[0], 20)) == 2
    assert samples.spread([1], 3) == [1] and samples.spread([], 3) == [] and samples.spread([1, 2, 3, 4], 2) == [1, 4]


def test_marks_of_the_run_are_shown():
    marks = ([], ["most surprising", "longest"], ["largest loss"], [])
    rows = [make_sample(n, 0.0, 0.0, CHANNELS.format("t", str(n))) | {"extremes": mark} for n, mark in enumerate(marks)]
    shown_as = {rows.index(row): why for row, why in samples.extremes(rows)}
    assert "most surprising" in shown_as[1] and "largest loss" in shown_as[2]


@pytest.mark.parametrize(
    "value", [{"a": 1}, [[1]], True, -1e308, 10**400], ids=["object", "list", "bool", "large", "larger"]
)
def test_samples_of_wrong_types_are_left_out(value, make_run, caplog):
    run = make_run()
    sound = make_sample(1, 1.0, 0.5)
    fields = (*sound, "extremes", "answered", "truncated")
    write_lines(run / "samples" / "step_1.jsonl", [sound, *({**sound, field: value} for field in fields)])
    group = samples.groups(Run(run), 1)[0]
    assert group.count in range(1, len(fields) + 1)
    assert sound["id"] in {problem.id for problem in problems.tables(Run(run))[0].problems}
    assert "broken line(s)" in caplog.text
