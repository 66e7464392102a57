"""The seconds of a step's phases: stated, and from gpu_check's report."""

import json
from pathlib import Path

import pytest

from grpo.launch import phases
from grpo.launch.decoding import LARGE, Engine
from grpo.launch.judge import RunJudge
from grpo.launch.phases import Rates
from grpo.launch.plan import make_plan
from grpo.model.sizes import DECODED_SEQUENCES

from .conftest import make_judge

MODEL = "openai/gpt-oss-120b"
LAYER = {"tokens": [1000, 3000], "train_s": [0.010, 0.030], "forward_s": [0.004, 0.008], "scores_s": [0.01, 0.03]}


def write_report(folder: Path, *rungs: dict) -> Path:
    file = folder / "gpu_check.json"
    file.write_text(json.dumps({"rungs": [{"verdict": "passed"} | rung for rung in rungs]}))
    return file


def make_config(setting, **changes):
    """64 samples of 4096 tokens, eight optimizer steps: the first one needs no pass for old log-probs."""
    lengths = {"prompt_max_len": 1024, "generate_max_len": 3072, "micro_train_batch_size": 1, "offload": None}
    return setting.make_config(**{"pretrain": MODEL, "engine_model": MODEL, "lora_rank": 64} | lengths | changes)


def compute_phases(config, rates: Rates, judge: RunJudge | None = None) -> dict:
    found = phases.phases(make_plan(config), config, judge or make_judge(), rates)
    return {phase.name: phase for phase in found}


def test_without_a_report_the_figures_are_stated(setting, tmp_path: Path) -> None:
    parts = compute_phases(make_config(setting), Rates.from_report(tmp_path / "none.json"))
    assert parts["training"].seconds == pytest.approx(26)
    assert parts["old log-probs"].seconds == pytest.approx(7 * 7 / 8)
    assert parts["gathers"].seconds == pytest.approx(11.2, abs=0.1) and parts["gathers"].low == 0
    assert "docs/gpu.md" in parts["training"].source and "range assumed" in parts["training"].source
    assert all(phase.low <= phase.seconds <= phase.high for phase in parts.values())


def test_only_the_passes_that_a_run_makes_are_counted(setting) -> None:
    usual, rates = compute_phases(make_config(setting), Rates.from_docs()), Rates.from_docs()
    one_step = compute_phases(make_config(setting, train_batch_size=64), rates)
    assert "old log-probs" not in one_step and "old log-probs" in usual
    assert one_step["gathers"].seconds == pytest.approx(usual["gathers"].seconds * 2 / (2 + 7 / 8))
    assert "old log-probs" not in compute_phases(make_config(setting, old_log_probs="engine"), rates)
    with_kl = compute_phases(make_config(setting, init_kl_coef=0.001, use_kl_loss=True, kl_estimator="k3"), rates)
    assert with_kl["reference"].seconds == pytest.approx(7) and "reference" not in usual
    assert with_kl["old log-probs"] == usual["old log-probs"]
    in_reward = compute_phases(make_config(setting, init_kl_coef=0.001), rates)
    assert in_reward["old log-probs"].seconds == pytest.approx(7), "the reward reads all of them"
    twice = compute_phases(make_config(setting, max_epochs=2), rates)
    assert twice["training"].seconds == pytest.approx(2 * usual["training"].seconds)
    assert twice["old log-probs"].seconds == pytest.approx(7), "a second epoch reads them again"


def test_bf16_experts_are_gathered_and_copied_as_they_are(setting) -> None:
    sizes = [sum(LARGE.actor_bytes(packed).values()) for packed in (True, False)]
    packed, plain = (
        compute_phases(make_config(setting, experts=kind, offload=True), Rates.from_docs())
        for kind in ("packed", "bf16")
    )
    for name in ("gathers", "copies from the host"):
        assert plain[name].seconds == pytest.approx(packed[name].seconds * sizes[1] / sizes[0])


def test_beyond_the_measured_lengths_the_range_allows_for_the_square(setting) -> None:
    """Measured on an H100, docs/gpu.md: 16 samples of 32,768 tokens take 118 s, from two layers and the head."""
    near, far = (
        compute_phases(make_config(setting, generate_max_len=length - 1024), Rates.from_docs())["training"]
        for length in (16_384, 65_536)
    )
    assert near.high == pytest.approx(near.seconds * 1.5) and "beyond" not in near.source
    assert far.high == pytest.approx(far.seconds * 1.5 * 4) and "beyond 16,384 tokens extrapolated" in far.source


def test_a_measured_layer_predicts_training(setting, tmp_path: Path) -> None:
    rates = Rates.from_report(write_report(tmp_path, {"name": "layer", "numbers": LAYER}))
    config = make_config(setting, prompt_max_len=1000, generate_max_len=2000)
    parts, samples = compute_phases(config, rates), config.rollouts_per_step / config.actor_ranks
    training, old = parts["training"], parts["old log-probs"]
    assert training.seconds == pytest.approx(samples * (36 * 0.030 + 0.03))
    assert old.seconds == pytest.approx(samples * 7 / 8 * (36 * 0.008 + 0.03))
    assert (training.low, training.high) == (
        pytest.approx(training.seconds * 0.9),
        pytest.approx(training.seconds * 1.3),
    )
    assert training.source == "measured on this machine" and "calculated" in parts["sampling"].source


def test_measured_links_replace_assumed_ones(setting, tmp_path: Path) -> None:
    links = {"name": "all-reduce", "numbers": {"all_gather_gb_per_s": 100.0}}
    copies = {"name": "host copies", "numbers": {"to_device_gb_per_s": 50.0}}
    config = make_config(setting, offload=True)
    assumed, measured = (
        compute_phases(config, Rates.from_report(file))
        for file in (tmp_path / "no", write_report(tmp_path, links, copies))
    )
    assert measured["gathers"].seconds == pytest.approx(2 * assumed["gathers"].seconds)
    assert "measured 100 GB/s" in measured["gathers"].source
    assert measured["copies from the host"].seconds == pytest.approx(assumed["copies from the host"].seconds / 2)
    assert measured["training"] == assumed["training"]


def test_whole_models_and_single_ranks_gather_nothing(setting, tmp_path: Path) -> None:
    assert "gathers" not in compute_phases(make_config(setting, actor_shard="none"), Rates.from_docs())
    one = compute_phases(make_config(setting, actor_num_gpus_per_node=1, offload=True), Rates.from_docs())
    assert "gathers" not in one and one["copies from the host"].seconds > 0, "it still copies its base to the GPU"


@pytest.mark.parametrize(
    "text", ["no json", "[]", '{"rungs": [{"name": "layer", "verdict": "passed", "numbers": {"tokens": [1]}}]}']
)
def test_a_report_that_cannot_be_used_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    rates = Rates.from_report(file)
    assert f"{file} cannot be used" in rates.source and rates.train == Rates.from_docs().train


def test_a_failed_rung_gives_no_figures(tmp_path: Path) -> None:
    file = write_report(tmp_path, {"name": "layer", "numbers": LAYER, "verdict": "failed"})
    assert Rates.from_report(file) == Rates.from_docs()


def test_the_small_model_takes_its_share(setting) -> None:
    small = "openai/gpt-oss-20b"
    whole, part = (
        compute_phases(make_config(setting, pretrain=model, engine_model=model), Rates.from_docs())
        for model in (MODEL, small)
    )
    for name in ("training", "old log-probs"):
        assert 24 / 36 * 32 / 128 < part[name].seconds / whole[name].seconds < 24 / 36
    assert part["sampling"].seconds < whole["sampling"].seconds


def test_the_longest_response_decides_and_not_the_number_of_samples(setting) -> None:
    def compute_seconds(**changes) -> float:
        return compute_phases(make_config(setting, **changes), Rates.from_docs())["sampling"].seconds

    for flags in ({"enforce_eager": True}, {}):
        usual = compute_seconds(**flags)
        assert usual < compute_seconds(rollout_batch_size=16, **flags) < 1.9 * usual
        assert compute_seconds(generate_max_len=6144, **flags) == pytest.approx(2 * usual, rel=0.05)
        times = [compute_seconds(vllm_num_engines=engines, **flags) for engines in (1, 2, 4, 8, 64)]
        assert times == sorted(times, reverse=True) and times[1] > 0.6 * times[0]
    assert compute_seconds() < compute_seconds(enforce_eager=True)
    assert 92 < compute_seconds(enforce_eager=True) < 138, "calculated before, for 64 samples of 3,072 tokens"


def test_a_cache_without_room_for_all_samples_is_filled_again(setting) -> None:
    def compute_seconds(gpu_gb: float) -> float:
        return compute_phases(
            make_config(setting, vllm_tensor_parallel_size=1, gpu_gb=gpu_gb, vllm_gpu_memory_utilization=0.9),
            Rates.from_docs(),
        )["sampling"].seconds

    assert compute_seconds(80) < compute_seconds(76) < compute_seconds(75) < 2 * compute_seconds(80)


def test_the_judge_takes_rounds_and_quotas_and_ends_at_its_deadline(setting) -> None:
    def compute_judging(**changes):
        return compute_phases(make_config(setting), Rates.from_docs(), make_judge(**changes))["judge"]

    usual = compute_judging()
    assert (usual.low, usual.seconds, usual.high) == (20, 2 * 30, 2 * 40)
    assert compute_judging(concurrency=64).seconds == 30 and compute_judging(concurrency=16).seconds == 4 * 30
    assert compute_judging(requests_per_window=30).seconds == 60 + 2 * 60
    assert compute_judging(tokens_per_window=100_000).seconds == 60 + 2 * 60
    assert compute_judging(concurrency=1).high == 240
    assert "judge" not in compute_phases(make_config(setting), Rates.from_docs(), RunJudge(None, False))


def test_evaluations_are_spread_over_the_steps(setting) -> None:
    config = make_config(setting, generate_max_len=500)
    plan, parts = make_plan(config), compute_phases(config, Rates.from_docs())
    each = parts["evaluation"].seconds * plan.steps / plan.evals
    assert (plan.steps, plan.evals) == (6, 4) and f"4 of {each:,.0f} s over 6 steps" in parts["evaluation"].source
    assert each < parts["sampling"].seconds, "there are fewer held-out samples"
    assert "evaluation" not in compute_phases(make_config(setting, eval_steps=-1), Rates.from_docs())
    saved, adapter = plan.checkpoint_bytes / config.args.save_steps, 2 * plan.lora_parameters
    assert parts["sync, checkpoint"].seconds == pytest.approx((saved + adapter) / 1e9)


def test_measured_passes_replace_calculated_ones(setting, tmp_path: Path) -> None:
    passes = {"eager": {"1": 0.050, "32": 0.060}, "graphs": {"16": 0.010}}
    file = write_report(tmp_path, {"name": "engine speed", "numbers": {"decode_s": passes, "model": "gpt-oss-120b"}})
    measured = Rates.from_report(file).decoding
    assert Engine(LARGE, 1, True, measured).time_pass(32, 568) == pytest.approx(0.060)
    assert Engine(LARGE, 1, False, measured).time_pass(16, 568) == pytest.approx(0.010)
    one, two = (Engine(LARGE, width, True, measured) for width in (1, 2))
    assert 0.050 < one.time_pass(16, 568) < 0.060
    plain = [Engine(LARGE, width, True, {}).time_pass(16, 568) for width in (1, 2)]
    assert two.time_pass(16, 0) / one.time_pass(16, 568) == pytest.approx(plain[1] / plain[0])
    changes = {"vllm_num_engines": 2, "vllm_tensor_parallel_size": 1, "enforce_eager": True}
    assert compute_phases(make_config(setting, **changes), Rates.from_report(file))["sampling"].source.endswith(
        "measured on this machine"
    )


@pytest.mark.parametrize("eager", [True, False])
def test_adapters_of_experts_lengthen_a_pass_by_their_steps_and_by_what_the_gpu_reads(eager: bool) -> None:
    plain, adapted, doubled = (Engine(LARGE, 1, eager, {}, rank) for rank in (0, 16, 32))
    assert adapted.time_pass(16, 568) > 1.1 * plain.time_pass(16, 568)
    weights = 2 * LARGE.layers * LARGE.experts * 16 * 5 * 2880  # A and B of gate_up and down, 16 ranks of bf16
    every, few = (doubled.time_gpu(count, 568) - adapted.time_gpu(count, 568) for count in (10_000, 1))
    assert every == pytest.approx(weights / 1.67e12) and few == pytest.approx(every * 4 / 128)
    halved = [Engine(LARGE, 2, eager, {}, rank).time_gpu(10_000, 568) for rank in (16, 32)]
    assert (halved[1] - halved[0]) / every == pytest.approx(3.5 / 5), "a worker has half of what is as wide as inside"


def test_sampling_counts_adapters_of_experts_that_passes_were_measured_without(setting, tmp_path: Path) -> None:
    numbers = {"decode_s": {"eager": {"1": 0.050}}, "model": "gpt-oss-120b"}
    rates = Rates.from_report(write_report(tmp_path, {"name": "engine speed", "numbers": numbers}))
    changes = {"target_modules": ["q_proj", "experts"], "enforce_eager": True}
    plain, adapted = (
        compute_phases(make_config(setting, **flags), rates)["sampling"] for flags in ({"enforce_eager": True}, changes)
    )
    assert adapted.seconds > 1.1 * plain.seconds and adapted.source.endswith("adapters of experts calculated")
    assert "experts" not in plain.source


@pytest.mark.parametrize(("sequences", "ms"), [(4, 3.72), (8, 4.05), (16, 4.83), (32, 5.82), (64, 7.36)])
def test_published_passes_with_graphs_on_8_gpus(sequences: int, ms: float) -> None:
    """InferenceX, issue 828, 1,024 + 1,024 tokens: the two constants are fitted to the first and the last."""
    assert 1000 * Engine(LARGE, 8, False, {}).time_gpu(sequences, 1536) == pytest.approx(ms, rel=0.08)


def test_a_published_pass_with_graphs_on_1_gpu() -> None:
    """GPUStack, vLLM 0.10.2 on ShareGPT: 2,943 tokens/s; a token every 36.4 to 46.5 ms (medians), 140 sequences."""
    assert 36.4 < 1000 * Engine(LARGE, 1, False, {}).time_pass(140, 300) < 46.5


def test_engines_take_as_many_sequences_at_once_as_vllm_by_default() -> None:
    from vllm.config.scheduler import SchedulerConfig

    assert SchedulerConfig.DEFAULT_MAX_NUM_SEQS == DECODED_SEQUENCES
