"""The arithmetic of a run, against numbers worked out by hand and by other libraries."""

from argparse import Namespace

import pytest
import torch

from grpo.launch import preflight
from grpo.launch.checks.model import check_model
from grpo.launch.plan import describe, make_plan
from grpo.model import model_files
from grpo.model.architecture import Architecture
from grpo.model.released import RELEASED
from grpo.stack.problem import UserError
from grpo.train.objectives import LOSSES, Loss
from grpo.train.optimizer_steps import LearningRate

from .boxes import LARGE, SMALL


def show(config) -> str:
    return "\n".join(describe(make_plan(config), config))


def test_batches_steps_and_resources(setting) -> None:
    config = setting.make_config()
    plan = make_plan(config)
    assert (plan.rollouts_per_step, plan.optimizer_steps_per_step) == (64, 8), "train_batch_size 8 counts rollouts"
    assert "4 ranks x micro batch 1 x 2 accumulated = 8" in show(config)
    assert plan.max_tokens_per_step == 64 * (64 + 32)
    assert plan.ray_gpus == 2 * 2 + 4
    assert plan.ray_cpus > plan.ray_gpus + 1, "each GPU is a bundle with a CPU, and the trainer takes one more"
    assert (plan.prompts, plan.steps_per_episode, plan.steps) == (20, 2, 6), "3 episodes; 4 prompts are left over"
    assert plan.evals == 1 + 3, "before the first step, then after steps 2, 4, 6"
    rate = LearningRate.of_run(config.args, 6 * 8)
    assert all(f"{rate.compute_at_step(step):.3g} in step {step}" in show(config) for step in (1, 2, 3, 6))
    shorter = make_plan(setting.make_config(max_steps=3))
    assert (shorter.steps, shorter.evals) == (3, 1 + 2), "after step 2, and after step 3, the last"
    assert make_plan(setting.make_config(eval_steps=-1)).evals is None


def test_lora_parameters_are_those_of_peft(setting, tmp_path) -> None:
    from peft import LoraConfig, get_peft_model

    model = model_files.read(tmp_path / "model")

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                rows, columns = model.tensors[f"model.layers.0.self_attn.{name}.weight"].shape
                setattr(self, name, torch.nn.Linear(columns, rows))

    targets = ["q_proj", "v_proj", "o_proj"]
    trainable, _ = get_peft_model(Attention(), LoraConfig(r=4, target_modules=targets)).get_nb_trainable_parameters()
    flags = Namespace(lora_rank=4, target_modules=targets)
    assert Architecture.from_config(model.config).count_lora_parameters(flags) == 2 * trainable, "two layers"


@pytest.mark.parametrize(("model", "packed", "whole"), [(LARGE, 65.2e9, 233.7e9), (SMALL, 13.8e9, 41.8e9)])
def test_a_released_model_is_planned_without_its_files(setting, model: str, packed: float, whole: float) -> None:
    """The sizes are those of the models on the hub."""
    config = setting.make_config(pretrain=model, engine_model=model, lora_rank=64, offload=None)
    plan = make_plan(config)
    assert plan.unknown == []
    assert plan.model_file_bytes == plan.model_actor_bytes == pytest.approx(packed, rel=0.005)
    assert plan.model_bf16_bytes == pytest.approx(whole, rel=0.005)
    lora = RELEASED[model].count_lora_parameters(config.args)
    assert plan.checkpoint_bytes == lora * (2 + 12), "the adapter in bf16; master weights and two moments in fp32"
    assert plan.disk_bytes == 3 * plan.checkpoint_bytes + lora * 2, "2 kept, one being written, the final adapter"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("openai/gpt-oss-safeguard-20b", "hf download openai/gpt-oss-safeguard-20b "),
        ("me/GPT-OSS-20b-mine", "hf download me/GPT-OSS-20b-mine "),
        ("Qwen/Qwen3-8B", ""),
    ],
)
def test_a_model_that_is_not_here_is_to_be_downloaded_or_of_another_family(setting, name: str, remedy: str) -> None:
    for flag, variable in (("pretrain", "MODEL"), ("engine_model", "--engine_model")):
        config = setting.make_config(**{flag: name})
        for problems in (preflight.problems_anywhere(config), list(check_model(config))):
            [problem] = [each for each in problems if each.what.startswith(f"{variable} {name}")]
            assert problem.remedy.startswith(remedy) and ("only gpt-oss" in problem.what) == (not remedy)


@pytest.mark.parametrize(("name", "is_wrong"), [("a.csv", True), ("mine/data", True), ("a.jsonl", False)])
def test_data_of_another_kind_is_refused_also_where_it_is_not(setting, name: str, is_wrong: bool) -> None:
    problems = preflight.problems_anywhere(setting.make_config(prompt_data=f"/nowhere/{name}", eval_dataset=None))
    assert [problem.what.startswith(f"TRAIN_DATA: /nowhere/{name} is not") for problem in problems] == [True] * is_wrong


def test_a_new_loss_is_an_entry_of_the_table(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "mine", Loss(lambda log_probs, *others: (-log_probs, {})))
    mine = {"policy_loss_type": "mine", "pretrain": SMALL}
    assert preflight.problems_anywhere(setting.make_config(**mine)) == []
    (problem,) = preflight.problems_anywhere(setting.make_config(**mine, dual_clip=3))
    assert "--dual_clip" in problem.what and "--policy_loss_type mine" in problem.what
    with pytest.raises(UserError, match="--policy_loss_type"):
        setting.make_config(policy_loss_type="yours")


def test_a_batch_ahead_is_stale_and_takes_room_in_a_checkpoint(setting) -> None:
    ahead = {"pipeline": True, "old_log_probs": "engine"}
    for train_batch, shown in ((8, "is 8 to 15 optimizer steps behind"), (64, "is 1 optimizer step behind")):
        text = show(setting.make_config(train_batch_size=train_batch, **ahead))
        assert shown in text and "off-policy" not in text
    in_turn, plan = make_plan(setting.make_config()), make_plan(setting.make_config(**ahead))
    assert plan.checkpoint_bytes - in_turn.checkpoint_bytes == 32 * plan.max_tokens_per_step
    replayed = make_plan(setting.make_config(routing_replay=True, **ahead))
    assert replayed.checkpoint_bytes - plan.checkpoint_bytes == 2 * 2 * plan.max_tokens_per_step, "layers, choices"
