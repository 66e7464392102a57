"""The seconds of a step's phases: stated, and from gpu_check's report."""

import json
from pathlib import Path

import pytest

from grpo.launch import cost
from grpo.launch.phases import LARGE, Line, Rates, phases
from grpo.model.released import RELEASED

MODEL = "openai/gpt-oss-120b"
LAYER = {"tokens": [1000, 3000], "train_s": [0.010, 0.030], "forward_s": [0.004, 0.008], "scores_s": [0.01, 0.03]}


def report(folder: Path, *rungs: dict) -> Path:
    file = folder / "gpu_check.json"
    file.write_text(json.dumps({"rungs": [{"verdict": "passed"} | rung for rung in rungs]}))
    return file


def config_of(setting, **changes):
    lengths = {"prompt_max_len": 1024, "generate_max_len": 3072, "micro_train_batch_size": 1, "offload": None}
    return setting.config(pretrain=MODEL, engine_model=MODEL, lora_rank=64, **lengths | changes)


def by_name(config, rates: Rates) -> dict:
    return {phase.name: phase for phase in phases(config, LARGE, rates)}


def test_a_line_goes_through_both_lengths() -> None:
    line = Line.through((10, 30), (1.5, 2.5))
    assert (line.of_sample, line.of_token) == (pytest.approx(1.0), pytest.approx(0.05))


def test_without_a_report_the_figures_are_stated(setting, tmp_path: Path) -> None:
    parts = by_name(config_of(setting), Rates.of_report(tmp_path / "none.json"))
    assert parts["training"].seconds == pytest.approx(26) and parts["old log-probs"].seconds == pytest.approx(7)
    assert parts["gathers"].seconds == pytest.approx(12, abs=0.5) and parts["gathers"].low == 0
    assert "docs/gpu.md" in parts["training"].source and "range assumed" in parts["training"].source
    assert all(phase.low <= phase.seconds <= phase.high for phase in parts.values())


def test_a_measured_layer_predicts_training(setting, tmp_path: Path) -> None:
    rates = Rates.of_report(report(tmp_path, {"name": "layer", "numbers": LAYER}))
    config = config_of(setting, prompt_max_len=1000, generate_max_len=2000)
    parts, samples = by_name(config, rates), config.samples_per_rollout / config.actor_ranks
    training, old = parts["training"], parts["old log-probs"]
    assert training.seconds == pytest.approx(samples * (36 * 0.030 + 0.03))
    assert old.seconds == pytest.approx(samples * (36 * 0.008 + 0.03))
    assert (training.low, training.high) == (
        pytest.approx(training.seconds * 0.9),
        pytest.approx(training.seconds * 1.3),
    )
    assert training.source == "measured on this machine" and "assumes" in parts["sampling"].source


def test_measured_links_replace_assumed_ones(setting, tmp_path: Path) -> None:
    links = {"name": "all-reduce", "numbers": {"all_gather_gb_per_s": 100.0}}
    copies = {"name": "host copies", "numbers": {"to_device_gb_per_s": 50.0}}
    config = config_of(setting, offload=True)
    assumed, measured = (
        by_name(config, Rates.of_report(file)) for file in (tmp_path / "no", report(tmp_path, links, copies))
    )
    assert measured["gathers"].seconds == pytest.approx(2 * assumed["gathers"].seconds)
    assert "measured 100 GB/s" in measured["gathers"].source
    assert measured["copies from the host"].seconds == pytest.approx(assumed["copies from the host"].seconds / 2)
    assert measured["training"] == assumed["training"]


def test_whole_models_and_single_ranks_gather_nothing(setting, tmp_path: Path) -> None:
    assert "gathers" not in by_name(config_of(setting, actor_shard="none"), Rates.stated())


@pytest.mark.parametrize(
    "text", ["no json", "[]", '{"rungs": [{"name": "layer", "verdict": "passed", "numbers": {"tokens": [1]}}]}']
)
def test_a_report_that_cannot_be_used_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    rates = Rates.of_report(file)
    assert f"{file} cannot be used" in rates.source and rates.train == Rates.stated().train


def test_a_failed_rung_gives_no_figures(tmp_path: Path) -> None:
    file = report(tmp_path, {"name": "layer", "numbers": LAYER, "verdict": "failed"})
    assert Rates.of_report(file) == Rates.stated()


def test_the_small_model_takes_its_share(setting) -> None:
    config, small = config_of(setting), RELEASED["openai/gpt-oss-20b"]
    whole, part = (cost.seconds_of_update(config, model, Rates.stated()) for model in (LARGE, small))
    assert 24 / 36 * 32 / 128 < part / whole < 24 / 36
