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
    """64 samples of 4096 tokens, eight optimizer steps: the first one needs no pass for old log-probs."""
    lengths = {"prompt_max_len": 1024, "generate_max_len": 3072, "micro_train_batch_size": 1, "offload": None}
    return setting.config(pretrain=MODEL, engine_model=MODEL, lora_rank=64, **lengths | changes)


def by_name(config, rates: Rates) -> dict:
    return {phase.name: phase for phase in phases(config, LARGE, rates)}


def test_a_line_goes_through_both_lengths() -> None:
    line = Line.through((10, 30), (1.5, 2.5))
    assert (line.of_sample, line.of_token) == (pytest.approx(1.0), pytest.approx(0.05))


def test_without_a_report_the_figures_are_stated(setting, tmp_path: Path) -> None:
    parts = by_name(config_of(setting), Rates.of_report(tmp_path / "none.json"))
    assert parts["training"].seconds == pytest.approx(26)
    assert parts["old log-probs"].seconds == pytest.approx(7 * 7 / 8)
    assert parts["gathers"].seconds == pytest.approx(11.2, abs=0.1) and parts["gathers"].low == 0
    assert "docs/gpu.md" in parts["training"].source and "range assumed" in parts["training"].source
    assert all(phase.low <= phase.seconds <= phase.high for phase in parts.values())


def test_only_the_passes_that_a_run_makes_are_counted(setting) -> None:
    usual, rates = by_name(config_of(setting), Rates.stated()), Rates.stated()
    one_step = by_name(config_of(setting, train_batch_size=64), rates)
    assert "old log-probs" not in one_step and "old log-probs" in usual
    assert one_step["gathers"].seconds == pytest.approx(usual["gathers"].seconds * 2 / (2 + 7 / 8))
    assert "old log-probs" not in by_name(config_of(setting, old_log_probs="engine"), rates)
    with_kl = by_name(config_of(setting, init_kl_coef=0.001, use_kl_loss=True, kl_estimator="k3"), rates)
    assert with_kl["reference"].seconds == pytest.approx(7) and "reference" not in usual
    assert with_kl["old log-probs"] == usual["old log-probs"]
    in_reward = by_name(config_of(setting, init_kl_coef=0.001), rates)
    assert in_reward["old log-probs"].seconds == pytest.approx(7), "the reward reads all of them"
    twice = by_name(config_of(setting, max_epochs=2), rates)
    assert twice["training"].seconds == pytest.approx(2 * usual["training"].seconds)
    assert twice["old log-probs"].seconds == pytest.approx(7), "a second epoch reads them again"


def test_bf16_experts_are_gathered_and_copied_as_they_are(setting) -> None:
    sizes = [sum(LARGE.actor_bytes(packed).values()) for packed in (True, False)]
    packed, plain = (
        by_name(config_of(setting, experts=kind, offload=True), Rates.stated()) for kind in ("packed", "bf16")
    )
    for name in ("gathers", "copies from the host"):
        assert plain[name].seconds == pytest.approx(packed[name].seconds * sizes[1] / sizes[0])


def test_beyond_the_measured_lengths_the_range_allows_for_the_square(setting) -> None:
    """Measured on an H100, docs/gpu.md: 16 samples of 32,768 tokens take 118 s, from two layers and the head."""
    near, far = (
        by_name(config_of(setting, generate_max_len=length - 1024), Rates.stated())["training"]
        for length in (16_384, 65_536)
    )
    assert near.high == pytest.approx(near.seconds * 1.5) and "beyond" not in near.source
    assert far.high == pytest.approx(far.seconds * 1.5 * 4) and "beyond 16,384 tokens extrapolated" in far.source


def test_a_measured_layer_predicts_training(setting, tmp_path: Path) -> None:
    rates = Rates.of_report(report(tmp_path, {"name": "layer", "numbers": LAYER}))
    config = config_of(setting, prompt_max_len=1000, generate_max_len=2000)
    parts, samples = by_name(config, rates), config.samples_per_rollout / config.actor_ranks
    training, old = parts["training"], parts["old log-probs"]
    assert training.seconds == pytest.approx(samples * (36 * 0.030 + 0.03))
    assert old.seconds == pytest.approx(samples * 7 / 8 * (36 * 0.008 + 0.03))
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
