"""How long a step takes, against published and measured seconds."""

import json

import pytest

from grpo.launch import fitting, hours
from grpo.launch.judge import RunJudge
from grpo.launch.plan import make_plan

from .boxes import BOXES, LARGE, RECIPE
from .conftest import make_judge

PUBLISHED = {4: 3.72e-3, 8: 4.05e-3, 16: 4.83e-3, 32: 5.82e-3, 64: 7.36e-3}  # InferenceX: one engine of 8 H100s
LAYER = {"tokens": [4096, 16384], "train_s": [0.02, 0.08], "scores_s": [0.1, 0.4]}


def describe(setting, judge=None, **changes) -> str:
    flags = RECIPE | BOXES["8"] | {"generate_max_len": 3072, "train_batch_size": 64, "enforce_eager": None}
    free = dict.fromkeys(fitting.MICRO_BATCHES)
    config = fitting.choose(setting.make_config(pretrain=LARGE, engine_model=LARGE, **flags | free | changes))
    return "\n".join(hours.describe(make_plan(config), config, judge or make_judge(), 100))


def read_seconds(text: str) -> float:
    return float(text.partition(" s, if")[0].rpartition(" ")[2].replace(",", ""))


@pytest.fixture(autouse=True)
def report(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hours, "GPU_REPORT", tmp_path / "report.json")
    return tmp_path / "report.json"


def test_passes_are_those_that_were_published() -> None:
    model, other = hours.RELEASED[LARGE], hours._BETWEEN + hours._RAY
    for sequences, seconds in PUBLISHED.items():
        assert hours._calculate_pass(model, 8, False, sequences, 1536) - other == pytest.approx(seconds, rel=0.2)
        assert hours._calculate_pass(model, 8, True, sequences, 1536) > 36 * 0.8e-3


def test_an_update_is_that_of_the_table() -> None:
    """docs/gpu.md: 16 rollouts on a GPU, one at a time, of 4,096 and 16,384 tokens."""
    of_batch, of_token = hours._UPDATE
    for tokens, seconds in ((4096, 26), (16384, 51)):
        assert 16 * (of_batch + of_token * tokens) == pytest.approx(seconds, rel=0.03)
    of_batch, of_token = hours.fit_update(LAYER)
    assert of_batch + of_token * 4096 == pytest.approx(36 * 0.02 + 0.1)


def test_a_step_is_sampling_judging_and_the_update(setting) -> None:
    text = describe(setting)
    assert text.count("\n") == 1 and text.count("calculated") == 2 and "assumed" in text
    whole = read_seconds(text)
    without_judge = read_seconds(describe(setting, RunJudge(None, is_stand_in=False)))
    assert whole - without_judge == pytest.approx(60, abs=1), "64 calls, 32 at once"
    assert read_seconds(describe(setting, pipeline=True, old_log_probs="engine")) < whole
    assert read_seconds(describe(setting, enforce_eager=True)) > whole
    assert read_seconds(describe(setting, init_kl_coef=0.1)) > whole
    assert read_seconds(describe(setting, vllm_num_engines=1)) > whole
    assert describe(setting, gpu_gb=20) == "", "it does not fit"


def test_what_was_measured_here_takes_the_place_of_what_is_calculated(setting, report) -> None:
    calculated = read_seconds(describe(setting))
    passes = {"model": "gpt-oss-20b", "decode_s": {"graphs": {"8": 1.0, "32": 2.0}}}
    rungs = [("engine speed", passes, "passed"), ("layer", LAYER, "failed")]
    report.write_text(json.dumps({"rungs": [{"name": n, "numbers": v, "verdict": how} for n, v, how in rungs]}))
    text = describe(setting)
    assert "(measured)" in text and "(calculated; see" in text and read_seconds(text) > 10 * calculated
    for broken in ("", "{}", '{"rungs": 5}', "[]"):
        report.write_text(broken)
        assert read_seconds(describe(setting)) == calculated
