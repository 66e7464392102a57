"""The arithmetic of a run, against numbers worked out by hand and by other libraries."""

from argparse import Namespace

import pytest
import torch

from grpo.launch import preflight
from grpo.launch.checks.model import check_model
from grpo.launch.plan import describe, make_plan
from grpo.model import model_files
from grpo.model.architecture import Architecture
from grpo.model.model_files import Model, Tensor
from grpo.model.released import RELEASED
from grpo.stack.problem import UserError
from grpo.update.objectives import LOSSES, Loss

from .conftest import write_checkpoint


def test_batches_steps_and_resources(setting) -> None:
    plan = make_plan(setting.make_config())
    assert plan.rollouts_per_step == 64, "8 prompts x 8 samples"
    assert plan.optimizer_steps_per_step == 8, "train_batch_size 8 counts samples"
    assert plan.gradient_accumulation == 2, "8 samples on 4 ranks, one at a time"
    assert plan.max_tokens_per_step == 64 * (64 + 32)
    assert plan.ray_gpus == 2 * 2 + 4
    assert plan.ray_cpus > plan.ray_gpus + 1, "each GPU is a bundle with a CPU, and the trainer takes one more"
    assert (plan.prompts, plan.steps_per_episode, plan.unused_prompts_per_episode) == (20, 2, 4)
    assert plan.steps == 6, "2 steps an episode, 3 episodes"
    assert plan.scheduled_optimizer_steps == 6 * 8
    assert plan.evals == 1 + 3, "before the first step, then after steps 2, 4, 6"


def test_max_steps_ends_the_run_and_its_schedule(setting) -> None:
    plan = make_plan(setting.make_config(max_steps=3))
    assert plan.steps == 3
    assert plan.scheduled_optimizer_steps == 3 * 8
    assert plan.evals == 1 + 2, "after step 2, and after step 3, the last"

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
    layer = get_peft_model(Attention(), LoraConfig(r=4, target_modules=targets))
    trainable, _ = layer.get_nb_trainable_parameters()
    flags = Namespace(lora_rank=4, target_modules=targets)
    assert Architecture.from_config(model.config).count_lora_parameters(flags) == 2 * trainable, "two layers"


def test_lora_parameters_of_experts() -> None:
    """The rank of an expert is by default that of the attention divided by the experts of a token."""
    flags = Namespace(lora_rank=64, target_modules=["experts"], expert_rank=None)
    of_120b = RELEASED["openai/gpt-oss-120b"]
    assert of_120b.find_expert_rank(flags) == 16 and of_120b.count_lora_parameters(flags) == 1_061_683_200
    assert of_120b.find_expert_rank(Namespace(**vars(flags) | {"lora_rank": 2})) == 1
    both = Namespace(**vars(flags) | {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "experts"]})
    assert of_120b.count_lora_parameters(both) == 1_061_683_200 + 47_775_744
    assert of_120b.count_lora_parameters(Namespace(**vars(both) | {"expert_rank": 1})) == 66_355_200 + 47_775_744


def test_sizes_of_an_mxfp4_checkpoint(setting, tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "packed", mxfp4=True)
    model = model_files.read(folder)
    rest = 2 * 128 * 32 + 32  # embeddings, lm_head, last norm
    attention = 64 * 32 + 2 * 32 * 32 + 32 * 64 + 64 + 2 * 32 + 32 + 4
    experts = 4 * (32 * 64 + 64 + 32 * 32 + 32)
    assert model.is_mxfp4
    assert model.parameters == rest + 2 * (attention + experts + 4 * 32 + 4 + 2 * 32)
    assert model.bf16_bytes == 2 * model.parameters
    assert model.file_bytes == sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def test_sizes_of_gpt_oss_120b(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shapes of the 120b (36 layers, hidden 2880, 128 experts) give the sizes measured on the real one."""
    numbers = {
        "model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4,
        "intermediate_size": 2880, "vocab_size": 201088, "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    shapes = Architecture.from_config(numbers).list_stored()
    tensors = {name: Tensor(setting.folder, "BF16", shape, 0, 0) for name, shape in shapes.items()}
    model = Model(setting.folder, numbers, tensors)
    assert model.bf16_bytes / 1e9 == pytest.approx(233.7, abs=0.1)
    monkeypatch.setattr("grpo.launch.plan.released.find", lambda folder: model)
    monkeypatch.setattr(Model, "file_bytes", 60_900_000_000)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    plan = make_plan(setting.make_config(lora_rank=64, prompt_max_len=1024, generate_max_len=3072, experts="bf16"))
    assert plan.host_bytes is not None and 240e9 < plan.host_bytes < 300e9
    packed = make_plan(setting.make_config(lora_rank=64)).host_bytes
    assert packed is not None and plan.host_bytes - packed > 150e9
    assert plan.checkpoint_bytes == 47_775_744 * (2 + 12), "the adapter in bf16; master weights and two moments in fp32"
    assert plan.disk_bytes == 4 * plan.checkpoint_bytes + 47_775_744 * 2, (
        "2 kept, one from before a fall, one being written, the final adapter"
    )
    without_offload = make_plan(setting.make_config(lora_rank=64, offload=None)).host_bytes
    assert without_offload is not None and without_offload < 40e9


SURPRISES = (
    *("8 prompts x 8 rollouts = 64, ", "8 optimizer steps per global step, all but the first off-policy"),
    *("6 global steps", "4 for 2 engines of 2, 4 for the actor"),
)
SINGULAR = (*("1 optimizer step per", "1 rank x micro batch", "1 for 1 engine of 1", "1 episode, ", "1 global step\n"),)
ONES = {"vllm_num_engines": 1, "vllm_tensor_parallel_size": 1, "actor_num_gpus_per_node": 1, "num_episodes": 1}


def test_a_new_loss_is_an_entry_of_the_table(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "mine", Loss(lambda log_probs, *others: (-log_probs, {})))
    mine = {"policy_loss_type": "mine", "pretrain": "openai/gpt-oss-20b"}
    config = setting.make_config(**mine)
    assert preflight.problems_anywhere(config) == []
    assert "mine: EPS_CLIP has no effect" in "\n".join(describe(make_plan(config), config))
    (problem,) = preflight.problems_anywhere(setting.make_config(**mine, dual_clip=3))
    assert "--dual_clip" in problem.what and "POLICY_LOSS=mine" in problem.what
    for kind, read in (("cispo", "CISPO_MAX_RATIO is 5.0"), ("sapo", "SAPO_TEMPERATURES is [1.0, 1.05]")):
        config = setting.make_config(policy_loss_type=kind)
        assert read in "\n".join(describe(make_plan(config), config))
    with pytest.raises(UserError, match="POLICY_LOSS"):
        setting.make_config(policy_loss_type="yours")


@pytest.mark.parametrize(
    ("changes", "parts"), [({}, SURPRISES), (ONES | {"max_steps": 1, "train_batch_size": 64}, SINGULAR)]
)
def test_text_points_out_surprises_and_one_of_a_kind_is_in_the_singular(setting, changes, parts) -> None:
    config = setting.make_config(**changes)
    text = "\n".join(describe(make_plan(config), config))
    assert "unknown" not in text and [part for part in parts if part not in text] == []


def test_a_batch_ahead_is_stale_and_takes_room_in_a_checkpoint(setting) -> None:
    ahead = {"pipeline": True, "old_log_probs": "engine"}
    texts = {}
    for train_batch, shown in ((8, "is 8 to 15 optimizer steps behind"), (64, "is 1 optimizer step behind")):
        config = setting.make_config(train_batch_size=train_batch, **ahead)
        texts[shown] = "\n".join(describe(make_plan(config), config))
    assert all(shown in text and "off-policy" not in text for shown, text in texts.items())
    in_turn, plan = make_plan(setting.make_config()), make_plan(setting.make_config(**ahead))
    assert plan.checkpoint_bytes - in_turn.checkpoint_bytes == 32 * plan.max_tokens_per_step
    replayed = make_plan(setting.make_config(routing_replay=True, **ahead))
    assert replayed.checkpoint_bytes - plan.checkpoint_bytes == 2 * 2 * plan.max_tokens_per_step, "layers, choices"


def test_plan_without_model_and_data_lists_the_unknowns(setting, tmp_path) -> None:
    config = setting.make_config(pretrain=tmp_path / "none", prompt_data=tmp_path / "none.jsonl")
    plan = make_plan(config)
    text = "\n".join(describe(plan, config))
    assert plan.steps is None and plan.host_bytes is None
    assert "none is not a folder: name the folder of a checkpoint" in text and "none.jsonl does not exist" in text


def test_a_plan_refuses_a_model_of_another_family_instead_of_offering_it(setting) -> None:
    config = setting.make_config(pretrain="Qwen/Qwen3-8B")
    shown = describe(make_plan(config), config) + [str(problem) for problem in preflight.problems_anywhere(config)]
    assert not any("hf download" in line for line in shown)
    [problem] = preflight.problems_anywhere(config)
    assert problem.what == "MODEL Qwen/Qwen3-8B is not on this machine, and only gpt-oss can be trained"
    assert problem.remedy.startswith("use openai/gpt-oss-120b or openai/gpt-oss-20b, or name the folder")
    problem = preflight.problems_anywhere(setting.make_config(engine_model="Qwen/Qwen3-8B"))[-1]
    assert problem.what.startswith("ENGINE_MODEL Qwen/Qwen3-8B is not on this machine")
    assert preflight.problems_anywhere(setting.make_config(pretrain="openai/gpt-oss-20b")) == []


@pytest.mark.parametrize("name", ["openai/gpt-oss-safeguard-20b", "unsloth/gpt-oss-20b-BF16", "me/GPT-OSS-20b-mine"])
def test_a_gpt_oss_whose_files_are_not_here_is_to_be_downloaded(setting, name: str) -> None:
    config = setting.make_config(pretrain=name)
    for problems in (preflight.problems_anywhere(config), list(check_model(config))):
        assert name in problems[0].what and "can be trained" not in problems[0].what
        assert problems[0].remedy.startswith(f"hf download {name} ")
    assert f"hf download {name} " in "\n".join(describe(make_plan(config), config))


def test_steps_beyond_the_data_are_announced_with_what_would_give_them(setting) -> None:
    config = setting.make_config(max_steps=50)
    lines = "\n".join(describe(make_plan(config), config))
    assert "the data suffice for 6 steps, not for 50; set NUM_EPISODES=25" in lines
    assert make_plan(setting.make_config(max_steps=50, num_episodes=25)).steps == 50
    for steps in (6, None):
        config = setting.make_config(max_steps=steps)
        assert "fewer than" not in "\n".join(describe(make_plan(config), config))
