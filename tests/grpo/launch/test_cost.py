"""What a run costs, against the table of docs/gpu.md."""

import re
from types import SimpleNamespace

import pytest

from grpo.launch import cost, judge
from grpo.launch.judge import RunJudge
from grpo.launch.phases import Rates
from grpo.launch.plan import describe, make_plan
from grpo.model.released import RELEASED

LARGE = "openai/gpt-oss-120b"


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was measured on this machine, the figures are the stated ones."""
    monkeypatch.setattr(cost.Rates, "of_report", cost.Rates.stated)


def config_of(setting, model: str = LARGE, **changes):
    lengths = {"prompt_max_len": 1024, "generate_max_len": 3072, "offload": None}
    return setting.config(pretrain=model, engine_model=model, lora_rank=64, **lengths | changes)


@pytest.mark.parametrize(("response", "seconds"), [(3072, 26 + 6 + 11), (15_360, 51 + 16 + 11)])
def test_seconds_of_an_update_are_those_of_the_table(setting, response: int, seconds: int) -> None:
    config = config_of(setting, generate_max_len=response, micro_train_batch_size=1)
    assert cost.seconds_of_update(config, RELEASED[LARGE], Rates.stated()) == pytest.approx(seconds, abs=0.5)


def test_hours_and_judge_calls_of_the_whole_run(setting) -> None:
    config = config_of(setting, micro_train_batch_size=1)
    plan = make_plan(config)
    judged = RunJudge(SimpleNamespace(chain=SimpleNamespace(max_output_tokens=99)), is_stand_in=True)
    text = "\n".join(cost.describe(plan, config, judged))
    assert plan.steps == 6 and f"{6 * 64} calls in 6 steps" in text
    assert f"up to {6 * 64 * (1000 + 3072) / 1e6:.1f} million prompt tokens" in text
    step = 43 + 64 * 3072 / 2000
    assert int(re.search(r"of (\d+) s", text)[1]) == pytest.approx(step, abs=1)
    assert re.search(r"training +26 s \(21 to 39\): calculated from one H100", text)
    assert "assumes 1,000 tokens/s" in text


def test_a_step_ahead_takes_the_longer_of_sampling_and_the_rest(setting) -> None:
    judged = RunJudge(SimpleNamespace(chain=SimpleNamespace(max_output_tokens=99)), is_stand_in=True)

    def seconds(**changes: object) -> list[int]:
        """Of a step, and of one with the other value of PIPELINE."""
        config = config_of(setting, micro_train_batch_size=1, old_log_probs="engine", **changes)
        text = "\n".join(cost.describe(make_plan(config), config, judged))
        assert "old log-probs" not in text
        return [int(re.search(pattern, text)[1]) for pattern in (r"of (\d+) s, if", r"would take (\d+) s")]

    sampling, rest = 64 * 3072 / 2000, 26 + 8  # two gathers of the weights in place of three
    assert seconds() == pytest.approx([sampling + rest, sampling], abs=1)
    assert seconds(pipeline=True) == pytest.approx([sampling, sampling + rest], abs=1)
    assert seconds(pipeline=True, vllm_num_engines=8)[0] == pytest.approx(rest, abs=1)


@pytest.mark.parametrize(("asked", "steps"), [(20, 20), (None, 100)])
def test_without_data_the_cost_is_that_of_the_steps_asked_for(setting, asked: int | None, steps: int) -> None:
    config = config_of(setting, prompt_data="absent.jsonl", max_steps=asked)
    judged = RunJudge(SimpleNamespace(chain=SimpleNamespace(max_output_tokens=99)), is_stand_in=True)
    text = "\n".join(cost.describe(make_plan(config), config, judged))
    assert f"{steps * 64:,} calls in {steps} steps" in text and f"for {steps} steps of" in text


@pytest.mark.parametrize(
    ("model", "sizes"),
    [(LARGE, ("65.2 GB on disk", "233.7 GB in bf16")), ("openai/gpt-oss-20b", ("13.8 GB on disk", "41.8 GB in bf16"))],
)
def test_a_released_model_is_planned_without_its_files(setting, model: str, sizes: tuple[str, ...]) -> None:
    config = config_of(setting, model)
    plan = make_plan(config)
    text = "\n".join(describe(plan, config))
    assert all(size in text for size in sizes) and f"hf download {model}" in text
    assert "unknown" not in text and plan.host_bytes and plan.disk_bytes
    assert not [part for part in plan.host_memory if "engines" in part], "the engines are on GPUs"


def test_a_tiny_model_has_no_hours(setting) -> None:
    config = setting.config()
    assert not [
        line for line in cost.describe(make_plan(config), config, judge.of_run(config, True)) if "hours" in line
    ]
