"""What a run costs, against the README's table."""

import re
from dataclasses import replace

import pytest

from grpo.launch import cost, fitting, gpu_limits, gpu_memory, hours, judge
from grpo.launch.judge import RunJudge
from grpo.launch.plan import describe, make_plan
from tests.docs.pages import get_page

from .boxes import BOXES
from .conftest import make_judge, write_aime

LARGE = "openai/gpt-oss-120b"


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was measured on this machine, the figures are the stated ones."""
    monkeypatch.setattr(hours, "read_report", dict)


def make_config(setting, model: str = LARGE, **changes):
    lengths = {"prompt_max_len": 1024, "generate_max_len": 3072, "offload": None}
    return setting.make_config(pretrain=model, engine_model=model, lora_rank=64, **lengths | changes)


def describe_cost(config, judge: RunJudge | None = None) -> str:
    return "\n".join(cost.describe(make_plan(config), config, judge or make_judge()))


def test_calls_and_tokens_of_the_whole_run(setting) -> None:
    text = describe_cost(make_config(setting), make_judge())
    assert f"{6 * 64} calls in 6 steps" in text
    prompts, replies = 6 * 64 * (1000 + 3072) / 1e6, 6 * 64 * 2000 / 1e6
    assert f"up to {prompts:.1f} million prompt tokens" in text and f"{replies:.1f} million reply tokens" in text


def test_a_stand_in_costs_nothing_and_has_no_models_of_gemini(setting) -> None:
    stand_in = replace(make_judge(), is_stand_in=True)
    assert "judge cost" not in describe_cost(make_config(setting), stand_in)
    lines = judge.describe(stand_in, make_config(setting))
    assert lines[0] == "judge       NO KEY: a local server answers instead of Gemini; its scores mean nothing"
    assert len(lines) == 2 and "reward = " in lines[1]


@pytest.mark.parametrize(("asked", "steps"), [(20, 20), (None, 100)])
def test_without_data_the_cost_is_that_of_the_steps_asked_for(setting, asked: int | None, steps: int) -> None:
    text = describe_cost(make_config(setting, prompt_data="absent.jsonl", max_steps=asked))
    assert f"{steps * 64:,} calls in {steps} steps" in text and f"for {steps} steps of" in text


RECIPE = {
    "attn_implementation": "sinks", "eval_steps": 10, "eval_n_samples_per_prompt": 8, "train_batch_size": 64,
    "num_episodes": 50, "vllm_gpu_memory_utilization": 0.9, "gpu_gb": 80,
    "micro_train_batch_size": None, "micro_rollout_batch_size": None,
}  # fmt: skip


def plan_recipe(setting, model: str = LARGE, **flags):
    """The configuration of `train_grpo.sh` with AIME's 72 and 18 problems, and its plan."""
    config = fitting.choose(make_config(setting, model, **RECIPE | write_aime(setting.folder) | flags))
    return config, make_plan(config)


@pytest.mark.parametrize("row", next(table for table in get_page("README.md").tables if table[0][1] == "GPUs")[1:])
def test_the_readme_has_the_plans_numbers(setting, row: list[str]) -> None:
    model, gpus, host, longest, duration = (cell.replace(" ", "") for cell in row)
    name = f"openai/gpt-oss-{model.partition(',')[0]}"
    box, _, size = gpus.removesuffix("GB").partition("x")
    config, plan = plan_recipe(setting, name, **BOXES[box] | {"gpu_gb": size, "max_steps": 100})
    assert f"{plan.download_bytes / 1e9:.0f}GB" in model and host == f"{plan.host_bytes / 1e9:.0f}GB"
    assert longest == f"{gpu_memory.longest(config):,}"
    one = {"micro_train_batch_size": 1, "micro_rollout_batch_size": 1}
    longer = plan_recipe(setting, name, **BOXES[box] | {"gpu_gb": size, "max_len": gpu_memory.longest(config)} | one)[0]
    actors = [str(problem) for problem in gpu_limits.problems(longer) if "an engine may use" not in str(problem)]
    assert actors == [], "the launcher accepts it"
    assert f"hours       {duration.removesuffix('h')} for" in describe_cost(config)


def test_the_readme_says_what_the_plain_command_costs(setting) -> None:
    config, plan = plan_recipe(setting)
    (line,) = [line for line in get_page("README.md").text.split("\n\n") if line.startswith("The default run")]
    numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,.]*\d", line)]
    text = describe_cost(config)
    whole = float(re.search(r"hours +([\d.]+)", text)[1])
    tokens = [float(number) for number in re.findall(r"([\d.]+) million", text)]
    assert numbers == [round(whole), plan.steps, 28_800, *map(round, tokens)]


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (LARGE, ("65.2 GB on disk", "65.2 GB in the actor")),
        ("openai/gpt-oss-20b", ("13.8 GB on disk", "13.8 GB in the actor")),
    ],
)
def test_a_released_model_is_planned_without_its_files(setting, model: str, sizes: tuple[str, ...]) -> None:
    config = make_config(setting, model)
    plan = make_plan(config)
    text = "\n".join(describe(plan, config))
    assert all(size in text for size in sizes) and "in bf16" not in text and f"hf download {model}" in text
    assert "unknown" not in text and plan.host_bytes and plan.disk_bytes
    assert not [part for part in plan.host_memory if part.startswith("engines'")], "the engines are on GPUs"


def test_a_tiny_model_has_no_hours(setting) -> None:
    config = setting.make_config()
    assert not [
        line for line in cost.describe(make_plan(config), config, judge.choose_judge(config, True)) if "hours" in line
    ]
