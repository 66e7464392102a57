"""What a run costs: the judge's calls, and hours, against published and measured seconds and the README's table."""

import json
import re

import pytest

from grpo.launch import cost, gpu_memory
from grpo.launch.checks.machine import check_gpu_memory
from grpo.launch.judge import RunJudge
from grpo.launch.plan import make_plan
from tests.docs.pages import get_page

from .boxes import BOXES, LARGE, RECIPE
from .conftest import HELD_OUT, make_judge, write_recipe_data
from .recipe import ROOT

PUBLISHED = {4: 3.72e-3, 8: 4.05e-3, 16: 4.83e-3, 32: 5.82e-3, 64: 7.36e-3}  # InferenceX: one engine of 8 H100s
LAYER = {"tokens": [4096, 16384], "train_s": [0.02, 0.08], "scores_s": [0.1, 0.4]}
DEFAULTS = RECIPE | dict.fromkeys(gpu_memory.MICRO_BATCHES) | {
    "generate_max_len": 3072, "train_batch_size": 64, "enforce_eager": None, "eval_steps": 10,
    "eval_n_samples_per_prompt": 8, "num_episodes": 50,
}  # fmt: skip


@pytest.fixture(autouse=True)
def report(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cost, "GPU_REPORT", tmp_path / "report.json")
    return tmp_path / "report.json"


def plan_recipe(setting, model: str = LARGE, box: str = "8", **flags):
    """The configuration of `train_grpo.sh` with as many problems as the README prepares, and its plan."""
    flags = (
        DEFAULTS | BOXES[box] | write_recipe_data(setting.folder) | {"pretrain": model, "engine_model": model} | flags
    )
    config = gpu_memory.choose(setting.make_config(**flags))
    return config, make_plan(config)


def describe(setting, run_judge: RunJudge | None = None, **flags) -> str:
    config, plan = plan_recipe(setting, **flags)
    return "\n".join(cost.describe(plan, config, run_judge or make_judge()))


def read_seconds(text: str) -> float:
    return float(text.partition(" s, if")[0].rpartition(" ")[2].replace(",", ""))


def read_command() -> dict[str, int]:
    """The flags of the README's command for GPUs."""
    (found,) = re.findall(r"^\./train_grpo\.sh --steps (\d+) --eval_steps (\d+)$", get_page("README.md").text, re.M)
    return {"max_steps": int(found[0]), "eval_steps": int(found[1])}


@pytest.mark.parametrize("row", next(table for table in get_page("README.md").tables if table[0][1] == "GPUs")[1:])
def test_the_readme_has_the_plans_numbers(setting, row: list[str]) -> None:
    model, gpus, host, longest, duration = (cell.replace(" ", "") for cell in row)
    box, _, size = gpus.removesuffix("GB").partition("x")
    shape = {"model": f"openai/gpt-oss-{model.partition(',')[0]}", "box": box, "gpu_gb": size}
    config, plan = plan_recipe(setting, **shape, **read_command())
    assert f"{plan.model_file_bytes / 1e9:.0f}GB" in model and host == f"{plan.host_bytes / 1e9:.0f}GB"
    limit = gpu_memory.find_longest(config)
    assert longest == f"{limit:,}"
    one = dict.fromkeys(gpu_memory.MICRO_BATCHES, 1)
    refused = map(str, check_gpu_memory(plan_recipe(setting, **shape, max_len=limit, **one)[0]))
    assert [what for what in refused if "an engine may use" not in what] == [], "the launcher accepts it"
    hours = duration.removesuffix("h")
    assert f"hours       {hours} for 100 steps" in describe(setting, **shape, **read_command())
    assert box != "8" or f"command take {hours} hours" in (ROOT / "train_grpo.sh").read_text()


def test_the_readme_says_what_its_command_costs(setting) -> None:
    """The numbers of the paragraph: held-out problems, steps between evaluations, steps, calls, and tokens."""
    (line,) = [line for line in get_page("README.md").text.split("\n\n") if line.startswith("The hours are those")]
    numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,.]*\d", line)]
    command = read_command()
    text, all_steps = describe(setting, **command), describe(setting, eval_steps=command["eval_steps"])
    tokens = [round(float(number)) for number in re.findall(r"([\d.]+) million", text)]
    hours = re.search(r"hours +([\d.]+) for (\d+) steps", all_steps)
    assert numbers[:3] == [HELD_OUT, command["eval_steps"], command["max_steps"]]
    assert numbers[3:] == [6400, *tokens, float(hours[2]), float(hours[1])]


def test_passes_are_those_that_were_published() -> None:
    model, other = cost.RELEASED[LARGE], cost._BETWEEN + cost._RAY
    for sequences, seconds in PUBLISHED.items():
        assert cost._calculate_pass(model, 8, False, sequences, 1536) - other == pytest.approx(seconds, rel=0.2)
        assert cost._calculate_pass(model, 8, True, sequences, 1536) > 36 * 0.8e-3


def test_an_update_is_that_of_the_table() -> None:
    """docs/gpu.md: 16 rollouts on a GPU, one at a time, of 4,096 and 16,384 tokens."""
    of_batch, of_token = cost._UPDATE
    for tokens, seconds in ((4096, 26), (16384, 51)):
        assert 16 * (of_batch + of_token * tokens) == pytest.approx(seconds, rel=0.03)
    of_batch, of_token = cost.fit_update(LAYER)
    assert of_batch + of_token * 4096 == pytest.approx(36 * 0.02 + 0.1)


def test_what_was_measured_here_takes_the_place_of_what_is_calculated(setting, report) -> None:
    calculated = read_seconds(describe(setting))
    passes = {"model": "gpt-oss-20b", "decode_s": {"graphs": {"8": 1.0, "32": 2.0}}}
    checks = [("engine speed", passes, "passed"), ("layer", LAYER, "failed")]
    report.write_text(json.dumps({"checks": [{"name": n, "numbers": v, "verdict": how} for n, v, how in checks]}))
    text = describe(setting)
    assert "(measured)" in text and "(calculated; see" in text and read_seconds(text) > 10 * calculated
    for broken in ("", "{}", '{"checks": 5}', "[]"):
        report.write_text(broken)
        assert read_seconds(describe(setting)) == calculated
