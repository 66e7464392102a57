"""The live view: what it shows of runs in every state, and that nothing in a file can break it."""

import io
import json
import time
from collections.abc import Iterator

import pytest
from rich.cells import cell_len
from rich.console import Console

from grpo.diagnosis.finding import WARNING, Diagnosis, Evidence, Finding
from grpo.metrics.metric_schema import SCHEMA
from grpo.run.lost_writes import LostWrites
from grpo.run.run_files import RunFiles
from grpo.run.run_state import Run
from scripts.watch import __main__ as watch
from scripts.watch.frame import frame
from scripts.watch.samples import NewestSamples, pick

HARMONY = "<|start|>system<|message|>Be brief<|end|><|start|>user<|message|>{}<|end|><|start|>assistant"
SAMPLE = {"prompt": HARMONY.format("What is 2+2?"), "label": '{"answer": "4", "split": "train"}', "reward": 0.6}


def render_frame(run: Run, width: int = 80, now: float | None = None, **options) -> str:
    samples = NewestSamples(run.files)
    samples.refresh()
    lines = [line.plain for line in frame(run, samples, now or time.time(), width, **options)]
    assert max(map(cell_len, lines)) <= width
    assert not any(character in line for line in lines for character in "\n\r\t\x1b")
    return "\n".join(lines)


def run_watch(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert watch.main(list(words)) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.out and not output.err
    return output.out


def test_an_empty_run(make_run, capsys) -> None:
    run = make_run()
    assert "crashed" in run_watch(capsys, str(run.folder))
    run.hold()
    assert "engines and actor are starting" in run_watch(capsys, str(run.folder), "--once")


def test_one_frame_of_an_active_run(make_run, capsys) -> None:
    run = make_run()
    run.hold()
    run.evaluate(0, 0.25)
    for step in range(1, 11):
        run.step(step, ppo_kl=0.001 * step, judge_quality=0.7, shiny=3.0)
    run.evaluate(10, 0.5)
    text = run_watch(capsys, str(run.folder), "--once")
    assert "running  step 10/40 25%" in text and " left, until " in text
    assert "held out: 0.250 [0.150, 0.350] (n=18) at step 0 -> 0.500 [0.400, 0.600]" in text
    assert "ppo_kl             ▁▂" in text and "0.010" in text
    assert "\nquality " in text and "unknown metrics: shiny 3.000" in text
    assert "adapter" not in text, "the summary is for the end"


def test_every_column_of_tiers_1_and_2_is_shown_or_named_as_missing(make_run) -> None:
    run = make_run()
    names = {metric.name for metric in SCHEMA if metric.tier <= 2 and not metric.when}
    run.step(1)
    text = render_frame(Run(run.folder))
    assert all(name in text for name in names) and "missing metrics: " in text
    assert "routing_differs" not in text, "an option that the run does not use"
    run.step(2, **dict.fromkeys(names, 0.5))
    run.evaluate(2, 0.5)
    text = render_frame(Run(run.folder))
    assert all(name in text for name in names) and "missing metrics: " not in text


def test_a_value_out_of_its_range_has_a_mark(make_run) -> None:
    run = make_run()
    run.step(1, ppo_kl=0.01, reward_error=0.9)
    assert "0.010 " in render_frame(Run(run.folder)) and "out of range: reward_error 0.900" in render_frame(
        Run(run.folder)
    )
    run.step(2, ppo_kl=0.2, reward_error=0.0)
    assert "0.200!" in render_frame(Run(run.folder)) and "out of range" not in render_frame(Run(run.folder))


def test_responses_and_the_honesty_of_the_reward_have_rows_and_unused_models_have_none(make_run) -> None:
    run = make_run()
    names = ("response_length", "truncated", "entropy", "repetition", "reward_correct_correlation")
    models = {"judge_calls.pro": 0.0, "judge_failures.pro": 0.0, "judge_calls.flash": 1.0}
    for step in (1, 2):
        run.step(step, **dict.fromkeys(names, 0.25 * step), **models, advantage_min=-1.0, advantage_max=1.0)
    text = render_frame(Run(run.folder))
    assert all(f"{name:<18} " in text for name in (*names[:4], "correlation", "calls.flash"))
    assert not any(name in text for name in ("calls.pro", "failures.pro", "advantage_min", "advantage_max"))
    assert "entropy            ▁█" in text and "out of range" not in text, "marked in its row"


@pytest.mark.parametrize("width", [80, 100, 160])
def test_long_names_of_models_are_told_apart(make_run, width: int) -> None:
    run, models = make_run(), ("gemini-3.1-pro", "gemini-3.1-pro-preview")
    for step in (1, 2):
        run.step(step, **{f"judge_calls.{model}": float(step) for model in models}, judge_calls=1.0)
    assert all(f"calls.{model} " in render_frame(Run(run.folder), width) for model in models)


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (0, "finished", ""),
        (130, "stopped", "was stopped"),
        (None, "crashed", "killed"),
        (3, "stopped", "was stopped"),
        (4, "crashed", "exit code 4"),
    ],
)
def test_a_run_that_has_ended_is_summed_up(make_run, capsys, code, state, reason) -> None:
    run = make_run()
    run.hold()
    run.step(5)
    run.evaluate(5, 0.5)
    run.let_go(code)
    text = run_watch(capsys, str(run.folder))
    assert f"{state}  step 5/40" in text and reason in text
    assert text.startswith("step 5/40  reward") and "── " not in text, "a file gets lines, and no view"
    assert "exact match  0.500 [0.400, 0.600] (n=18) at step 5" in text
    assert ("command.sh" in text) == (code == 0), "what starts anew is no advice for a run that has not finished"


@pytest.mark.parametrize("code", [130, None, 3])
def test_resuming_is_advised_only_with_a_checkpoint(make_run, capsys, code) -> None:
    run = make_run()
    run.hold()
    run.let_go(code)
    assert "starts at step 0: the run saved no checkpoint" in " ".join(run_watch(capsys, str(run.folder)).split())
    (run.folder / "checkpoints" / "step_5" / "adapter").mkdir(parents=True)
    text = " ".join(run_watch(capsys, str(run.folder)).split())
    assert "--resume" in text and "saved no checkpoint" not in text


def test_a_run_of_a_version_without_a_command_file(make_run, capsys) -> None:
    run = make_run()
    run.step(3)
    (run.folder / "command.sh").unlink()
    text = run_watch(capsys, str(run.folder))
    assert "stopped  step 3/40" in text and "was stopped" not in text


def test_time_left_counts_steps_and_evaluations(make_run) -> None:
    run = make_run()
    run.hold()
    log = run.folder / "metrics.jsonl"
    rows = [{"step": step, "time": 1000.0 + 10 * step, "seconds": {"total": 10.0}} for step in range(1, 16)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Run(run.folder).seconds_left(1150.0) == 25 * 10, "nobody knows yet how long an evaluation takes"
    run.evaluate(10, 0.5)
    (run.folder / "eval.jsonl").write_text(json.dumps({"step": 10, "time": 1100.0, "seconds": 30.0}) + "\n")
    state = Run(run.folder)
    assert state.seconds_left(1150.0) == 25 * 10 + 3 * 30, "at 20, 30 and 40"
    assert state.seconds_left(1156.0) == 25 * 10 + 3 * 30 - 6
    assert state.seconds_left(9999.0) == 24 * 10 + 3 * 30, "at most one step is under way"
    assert "no update for" in render_frame(state, now=9999.0) and "no update for" not in render_frame(state, now=1160.0)
    RunFiles(run.folder).note_resume(15, {})
    state.refresh()
    assert state.seconds_left(1150.0) is None, "the resumed run is starting"
    run.step(16, seconds={"total": 10.0})
    state.refresh()
    assert state.seconds_left(1150.0) is not None
    run.let_go(130)
    state.refresh()
    assert state.seconds_left(1150.0) is None


def test_cut_and_broken_lines_are_left_out_and_counted(make_run, capsys) -> None:
    run = make_run()
    run.step(1)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew\n{"step": 3, "reward": NaN, "correct": null, "seconds": 4}\n{"step": 4, "rewa')
    LostWrites(Run(run.folder).files.lost_writes).add(2, "samples/step_2.jsonl: No space left on device")
    text = run_watch(capsys, str(run.folder))
    assert "step 3/40" in text and "1 broken line skipped in metrics.jsonl" in " ".join(text.split())
    assert "lost: 1 write failed since step 2 (last: samples/step_2.jsonl" in " ".join(text.split())


def test_columns_that_come_and_go_leave_gaps(make_run) -> None:
    run = make_run()
    run.step(1, entropy_new=1.0, ppo_kl=0.01)
    run.step(2)
    run.step(3, ppo_kl=0.02)
    assert "ppo_kl             ▁ █" in render_frame(Run(run.folder))


NASTY = "[bold]x[/] [/nope] [link=file:///] :smile: \x1b[2J\x1b]0;title\x07 \u202e a\r\n\tb"


def test_markup_and_control_codes_are_shown_as_text(make_run, capsys) -> None:
    run = make_run("tiny-[red]1\x1b[31m")
    run.step(1, **{f"new{NASTY}": 1.0})
    (run.folder / "ends.jsonl").write_text(json.dumps({"time": time.time(), "code": 1, "cause": NASTY}) + "\n")
    sample = SAMPLE | {"prompt": HARMONY.format(NASTY), "response": NASTY, "correct": 0.0, "label": NASTY}
    (run.folder / "samples" / "step_1.jsonl").write_text(json.dumps(sample) + "\n")
    text = run_watch(capsys, str(run.folder), "--once")
    assert "tiny-[red]1?[31m" in text and "the run failed: [bold]x[/]" in text
    assert "prompt    [bold]x[/] [/nope] [link=file:///] :smile: ?[2J" in text
    colored = Console(force_terminal=True, width=80, file=io.StringIO(), highlight=False)
    watch.print_frame(Run(run.folder), colored)
    assert "\x1b[2J" not in colored.file.getvalue() and "\x1b]" not in colored.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 300])
def test_wide_characters_and_long_texts_stay_in_the_line(make_run, width) -> None:
    run = make_run("名" * 60)
    run.step(1, judge_quality=1e300, ppo_kl=-1.23456789e-300)
    run.write_samples(1, SAMPLE | {"response": "答え" * 5000 + "終わり", "correct": 1.0, "response_length": 10_000.0})
    assert "終わり" in render_frame(Run(run.folder), width)


def test_short_terminal_shows_the_first_sections(make_run) -> None:
    run = make_run()
    run.step(1, ppo_kl=0.1)
    whole, part = render_frame(Run(run.folder)).split("\n"), render_frame(Run(run.folder), height=6).split("\n")
    assert len(part) == 6 and part[:5] == whole[:5]
    assert part[5].startswith(f"{len(whole) - 5} more lines")
    assert render_frame(Run(run.folder), height=len(whole)).split("\n") == whole


def test_findings(make_run) -> None:
    run = make_run()
    run.step(9)
    assert "Findings" not in render_frame(Run(run.folder)), "nobody has looked"
    assert "No findings" in render_frame(Run(run.folder), diagnosis=Diagnosis(3, 1))
    evidence = Evidence("reward", 7, 9, {"[b]before[/b]": 0.5, "after": 0.9})
    finding = Finding("reward_hacking", WARNING, 7, 9, (evidence,), "the judge is gamed", ())
    text = " ".join(render_frame(Run(run.folder), diagnosis=Diagnosis(3, 1, [finding])).split())
    assert "reward hacking from step 7 (warning): reward, steps 7 to 9: [b]before[/b] 0.5, after 0.9" in text


def test_the_diagnosis_is_in_the_view(make_run, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    for step in range(1, 61):  # few responses are cut, then nearly all of them
        run.step(step, actor_lr=1e-6, truncated=0.05 if step < 30 else 0.97, correct=0.5, reward=0.5)
    before_curves = run_watch(capsys, str(run.folder), "--once").partition("Is it learning?")[0]
    assert "truncat" in before_curves.partition("Findings")[2]


def test_most_informative_samples() -> None:
    numbers = [(0.0, 0.1, 10), (0.0, 0.5, 20), (1.0, 0.9, 90), (1.0, 0.6, 40)]
    rows = [
        SAMPLE | {"correct": correct, "reward": reward, "response_length": float(length), "response": f"s{length}"}
        for correct, reward, length in numbers
    ]
    chosen = {sample.why.split()[0]: sample.response for sample in pick(rows)}
    assert chosen == {"wrong": "s20", "right": "s40", "the": "s90"}
    ungraded = [row | {"correct": None} for row in rows]
    assert [sample.response for sample in pick(ungraded)] == ["s90", "s10"]  # the highest reward, the lowest
    assert pick(rows[:1])[0].question == "What is 2+2?" and "gold 4" in pick(rows[:1])[0].numbers
    assert [sample.response for sample in pick([{"response": "of another version"}])] == ["of another version"]
    assert pick([]) == []


def test_the_newest_samples_are_read_once_and_again_when_they_change(make_run, monkeypatch) -> None:
    run = make_run()
    run.write_samples(9, SAMPLE | {"response": "nine", "correct": 1.0})
    run.write_samples(10, SAMPLE | {"response": "ten", "correct": 1.0})
    samples = NewestSamples(RunFiles(run.folder))
    samples.refresh()
    assert samples.step == 10 and samples.shown[0].response == "ten"
    with monkeypatch.context() as patch:
        patch.setattr("scripts.watch.samples.read_samples", lambda _: pytest.fail("read again"))
        samples.refresh()
    (run.folder / "samples" / "step_10.jsonl").unlink()  # taken back by a resumed run
    samples.refresh()
    assert samples.step == 9 and samples.shown[0].response == "nine"


def test_a_run_that_writes_while_it_is_watched(make_run, capsys, monkeypatch) -> None:
    run = make_run()
    run.hold()

    def train() -> Iterator[None]:
        for step in range(1, 6):
            yield run.step(step)
        run.resume_after(3)  # held all the time, since the view ends when the run's lock is released
        for step in range(4, 7):
            yield run.step(step, reward=0.75)
        yield run.let_go(0)

    training = train()
    monkeypatch.setattr(time, "sleep", lambda _: next(training))  # something is written between any two looks
    text = run_watch(capsys, str(run.folder), "--every", "0.1")
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    assert lines.count(lines[0]) == 1
    steps = [int(line.split()[1].partition("/")[0]) for line in lines]
    assert set(steps) == set(range(1, 7)) and steps.count(1) == steps.count(2) == steps.count(3) == 1
    assert lines[-1].startswith("step 6/40  reward 0.750")
    assert "finished  step 6/40" in text


def test_a_frame_of_a_thousand_steps_is_no_larger_than_one_of_a_hundred(make_run) -> None:
    run = make_run()
    names = [metric.name for metric in SCHEMA if "." not in metric.name]
    sizes = []
    for steps in (100, 1000):
        rows = [
            {"step": step, "time": float(step), **dict.fromkeys(names, step % 9 / 7)} for step in range(1, steps + 1)
        ]
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        state = Run(run.folder)
        state.refresh()
        sizes.append(render_frame(state).count("\n"))
    assert sizes[1] <= sizes[0]
