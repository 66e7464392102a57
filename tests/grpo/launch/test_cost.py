"""What a run costs, against the README's table."""

import re
from dataclasses import replace

import pytest

from grpo.launch import cost, fitting, gpu_limits, gpu_memory, judge
from grpo.launch.judge import RunJudge
from grpo.launch.phases import ACTOR, Rates, phases
from grpo.launch.plan import describe, make_plan
from tests.docs.pages import get_page

from .boxes import BOXES
from .conftest import make_judge, write_aime

LARGE = "openai/gpt-oss-120b"


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was measured on this machine, the figures are the stated ones."""
    monkeypatch.setattr(cost.Rates, "from_report", cost.Rates.from_docs)


def make_config(setting, model: str = LARGE, **changes):
    lengths = {"prompt_max_len": 1024, "generate_max_len": 3072, "offload": None}
    return setting.make_config(pretrain=model, engine_model=model, lora_rank=64, **lengths | changes)


def describe_cost(config, judge: RunJudge | None = None) -> str:
    return "\n".join(cost.describe(make_plan(config), config, judge or make_judge()))


@pytest.mark.parametrize(("response", "seconds"), [(3072, 26 + 6 + 11), (15_360, 51 + 16 + 11)])
def test_seconds_of_an_update_are_those_of_the_table(setting, response: int, seconds: int) -> None:
    config = make_config(setting, generate_max_len=response, micro_train_batch_size=1)
    parts = phases(make_plan(config), config, make_judge(), Rates.from_docs())
    assert sum(phase.seconds for phase in parts if phase.whose == ACTOR) == pytest.approx(seconds, abs=0.5)


def test_hours_calls_tokens_and_price_of_the_whole_run(setting) -> None:
    config = make_config(setting, micro_train_batch_size=1, enforce_eager=True, eval_steps=-1)
    text = describe_cost(config, make_judge(price=(2.0, 12.0)))
    assert f"{6 * 64} calls in 6 steps" in text
    prompts, replies = 6 * 64 * (1000 + 3072) / 1e6, 6 * 64 * 2000 / 1e6
    assert f"up to {prompts:.1f} million prompt tokens" in text and f"{replies:.1f} million reply tokens" in text
    assert f"{2 * prompts + 12 * replies:.0f} USD at JUDGE_PRICE" in text and "USD" not in describe_cost(config)
    sampling = int(re.search(r"sampling +(\d+) s", text)[1])
    assert int(re.search(r"of (\d+) s, if every", text)[1]) == pytest.approx(sampling + 60 + 43, abs=2)
    assert re.search(r"training +26 s \(21 to 39\): calculated from one H100", text)
    assert "34 ms for each of 3,072 tokens, 32 rollouts per engine, eager; calculated, see docs/gpu.md" in text


def test_the_hint_of_the_other_way_is_the_plan_of_that_way(setting, monkeypatch) -> None:
    """train_grpo.sh lets PIPELINE choose OLD_LOG_PROBS, and with it a pass, unless the user has."""
    monkeypatch.delenv("OLD_LOG_PROBS", raising=False)
    ways = ({"pipeline": None, "old_log_probs": "trainer"}, {"pipeline": True, "old_log_probs": "engine"})
    texts = [describe_cost(make_config(setting, micro_train_batch_size=1, **way)) for way in ways]
    steps = [re.search(r"of (\d+) s, if", text)[1] for text in texts]
    assert [re.search(r"PIPELINE=. would take (\d+) s", text)[1] for text in texts] == steps[::-1]


def test_a_stand_in_costs_nothing_and_has_no_models_of_gemini(setting) -> None:
    stand_in = replace(make_judge(price=(2.0, 12.0)), is_stand_in=True)
    assert "judge cost" not in describe_cost(make_config(setting), stand_in)
    lines = judge.describe(stand_in, make_config(setting))
    assert lines[0] == "judge       NO KEY: a local server answers instead of Gemini; its scores mean nothing"
    assert len(lines) == 2 and "reward = " in lines[1]


def test_a_step_ahead_takes_the_longest_of_engines_actor_and_half_a_batch(setting, monkeypatch) -> None:
    monkeypatch.setenv("OLD_LOG_PROBS", "engine")

    def read_seconds(**changes: object) -> list[int]:
        """Of a step, and of one with the other value of PIPELINE."""
        flags = {"micro_train_batch_size": 1, "old_log_probs": "engine", "eval_steps": -1} | changes
        text = describe_cost(make_config(setting, **flags))
        assert "old log-probs" not in text
        return [int(re.search(pattern, text)[1]) for pattern in (r"of (\d+) s, if", r"PIPELINE=. would take (\d+) s")]

    engines, judge, actor = 63, 60, 26 + 8  # two gathers of the weights in place of three
    in_turn = engines + judge + actor
    assert read_seconds() == pytest.approx([in_turn, in_turn / 2], abs=2), (
        "the last rewards of a batch hold up two steps"
    )
    assert read_seconds(pipeline=True) == pytest.approx([in_turn / 2, in_turn], abs=2)
    assert read_seconds(pipeline=True, max_epochs=5)[0] == pytest.approx(5 * actor, abs=2)
    for waiting in ({"dynamic_filtering": True}, {"partial_rollouts": 2}):
        assert read_seconds(pipeline=True, **waiting)[0] == pytest.approx(engines + judge, abs=2)


def test_engines_and_actor_on_the_same_gpus_take_turns(setting) -> None:
    config = make_config(setting, micro_train_batch_size=1, colocate_all_models=True, gpu_gb=400)
    text = describe_cost(fitting.choose_engine_share(config))
    assert "PIPELINE" not in text and "ENFORCE_EAGER=1" in text


def test_the_plan_says_how_fast_a_step_is_if_the_engine_drops_its_cache_for_the_update(setting) -> None:
    """Alone on its GPU while it samples, the engine holds more sequences."""
    shared = {"colocate_all_models": True, "actor_shard": "engine", "micro_train_batch_size": 1, "gpu_gb": 80}
    one = {"vllm_num_engines": 1, "vllm_tensor_parallel_size": 1, "actor_num_gpus_per_node": 1}
    ways = [
        make_config(setting, **shared | one, attn_implementation="sinks", vllm_enable_sleep=way) for way in (None, True)
    ]
    awake, asleep = (describe_cost(fitting.choose_engine_share(way)) for way in ways)
    seconds = int(re.search(r"vllm_enable_sleep would take (\d+) s", awake)[1])
    assert seconds == int(re.search(r"of (\d+) s, if every", asleep)[1]) and "vllm_enable_sleep" not in asleep
    assert seconds < int(re.search(r"of (\d+) s, if every", awake)[1])


def test_the_plan_says_how_the_same_gpus_would_sample_otherwise(setting) -> None:
    config = make_config(setting, enforce_eager=True, gpu_gb=80, vllm_gpu_memory_utilization=0.9)
    eager, graphs = (
        describe_cost(config),
        describe_cost(make_config(setting, gpu_gb=80, vllm_gpu_memory_utilization=0.9)),
    )
    times = [int(re.search(r"NUM_ENGINES=4 ENGINE_TP=1 would sample in (\d+) s", text)[1]) for text in (eager, graphs)]
    assert 92 < times[0] < int(re.search(r"sampling +(\d+) s", eager)[1]) and times[1] < times[0]
    assert "faster, within the margin of error;" in eager and "its cache has 50 of the longest sequences at" in eager
    assert "assumes 8 us per all-reduce and 2 ms of Ray per pass" in eager
    assert "ENFORCE_EAGER=0 would take" in eager and "ENFORCE_EAGER=1 would take" in graphs
    small = describe_cost(make_config(setting, gpu_gb=48, vllm_gpu_memory_utilization=0.9))
    assert "NUM_ENGINES=4 ENGINE_TP=1 does not fit: its cache has no room" in small
    one = {"vllm_num_engines": 1, "vllm_tensor_parallel_size": 1}
    assert "ENGINE_TP=" not in describe_cost(make_config(setting, gpu_gb=80, **one))
    shared = {"colocate_all_models": True, "actor_shard": "engine", "micro_train_batch_size": 1, "enforce_eager": True}
    shared |= {"attn_implementation": "sinks", "vllm_num_engines": 4}
    config = make_config(setting, gpu_gb=80, **one | shared)
    text = describe_cost(fitting.choose_engine_share(config))
    assert "ENFORCE_EAGER=0 would take" in text and "would sample in" not in text


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
    model, gpus, host, longest, hours = (cell.replace(" ", "") for cell in row)
    name = f"openai/gpt-oss-{model.partition(',')[0]}"
    box, _, size = gpus.removesuffix("GB").partition("x")
    config, plan = plan_recipe(setting, name, **BOXES[box] | {"gpu_gb": size, "max_steps": 100})
    assert f"{plan.download_bytes / 1e9:.0f}GB" in model and host == f"{plan.host_bytes / 1e9:.0f}GB"
    assert longest == f"{gpu_memory.longest(config):,}"
    one = {"micro_train_batch_size": 1, "micro_rollout_batch_size": 1}
    longer = plan_recipe(setting, name, **BOXES[box] | {"gpu_gb": size, "max_len": gpu_memory.longest(config)} | one)[0]
    actors = [str(problem) for problem in gpu_limits.problems(longer) if "an engine may use" not in str(problem)]
    assert actors == [], "the launcher accepts it"
    assert f"hours       {hours.removesuffix('h')} (" in describe_cost(config)


def test_the_readme_says_what_the_plain_command_costs(setting) -> None:
    config, plan = plan_recipe(setting)
    (line,) = [line for line in get_page("README.md").text.split("\n\n") if line.startswith("The default run")]
    numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,.]*\d", line)]
    text = describe_cost(config)
    hours = float(re.search(r"hours +([\d.]+)", text)[1])
    tokens = [float(number) for number in re.findall(r"([\d.]+) million", text)]
    assert numbers == [round(hours), plan.steps, 28_800, *map(round, tokens)]


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
