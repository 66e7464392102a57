"""Bugs of stock OpenRLHF in the training loop: every check here fails on the pristine files and passes on ours."""

import argparse
import random
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

from grpo.checkpoint import trainer_state
from grpo.stack import json_files
from tests.grpo.conftest import fails_on_stock


class Tracker:
    """The values sent to Weights & Biases or TensorBoard."""

    def __init__(self) -> None:
        self.evaluations: list[tuple[int, dict]] = []

    def log_eval(self, step: int, logs: dict) -> None:
        self.evaluations.append((step, logs))

    def close(self) -> None:
        """Nothing is held."""


def sample(reward: float, correct: float) -> SimpleNamespace:
    numbers = {"correct": correct, "truncated": 0.0, "response_length": 3.0, "length_limit": 3.0}
    return SimpleNamespace(
        prompts=["p"], labels=["l"], rewards=torch.tensor([reward]), scores=torch.tensor([reward]),
        sequences=torch.ones(1, 4, dtype=torch.long), action_mask=torch.ones(1, 3), attention_mask=torch.ones(1, 4),
        info={name: torch.tensor([value]) for name, value in numbers.items()},
    )  # fmt: skip


def fit_one_step(load, run_dir: Path) -> tuple[Tracker, list[dict]]:
    """Run PPOTrainer.fit over one step with an evaluation; return the evaluations and the states that are saved."""
    trainer = object.__new__(load("trainer.ppo_trainer").PPOTrainer.__ray_metadata__.modified_class)
    start = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}
    tracker, saved = Tracker(), []
    data = run_dir / "problems.jsonl"
    data.write_text('{"id": "problem-1", "prompt": "p", "label": "l"}\n')
    rollouts = iter([([sample(0.5, 0.0)], None, 1, False), ([], None, 0, True)])
    values = {
        "args": argparse.Namespace(
            num_episodes=1, max_steps=None, dynamic_filtering=False, eval_steps=1, eval_at_start=True, save_steps=1,
            eval_temperature=1.0, eval_n_samples_per_prompt=1, run_dir=str(run_dir), metrics_dir=None,
            prompt_data=str(data), remote_rm_url=None, agent_func_path=None, eval_dataset=str(data),
            ckpt_path=None, log_samples=None, use_tensorboard=None, use_wandb=None,
            use_trackio=False, length_schedule=None, generate_max_len=3, pipeline=False, partial_rollouts=0,
            routing_replay=False, parity_limit=0.0,
        ),
        "init_checkpoint_states": lambda: start,
        "prompts_dataloader": MagicMock(
            __len__=lambda _: 1, dataset=SimpleNamespace(prompts=["p"], datasources=["source"])
        ),
        "eval_dataloader": [(["source"], ["p"], ["l"])],
        "samples_generator": SimpleNamespace(
            args=argparse.Namespace(seed=0, retire_after=None, retire_for=1, partial_rollouts=0, pipeline=False),
            prompts_dataloader=MagicMock(),
            generate_samples=lambda **_: next(rollouts), generate_eval_samples=lambda **_: [sample(0.7, 1.0)],
        ),
        "experience_maker": SimpleNamespace(make_experience_batch=None),
        "train_step": lambda samples, step: ({}, step + 1),
        "save_logs_and_checkpoints": lambda step, logs, states: saved.append(states),
        "ppo_train": None, "broadcast_to_vllm": None, "generate_kwargs": {}, "tokenizer": MagicMock(),
        "wandb_logger": tracker, "tensorboard_logger": None,
    }  # fmt: skip
    trainer.__dict__.update(values)
    trainer.tokenizer.added_tokens_decoder = {}
    trainer.tokenizer.decode, trainer.tokenizer.encode = (lambda *_, **__: "text"), (lambda *_, **__: [9])
    trainer.fit()
    if not load.stock:
        tracker.evaluations = [(row["step"], row) for row in json_files.read_rows(run_dir / "eval.jsonl")]
    return tracker, saved


def test_an_evaluation_is_by_exact_match(load, tmp_path):
    tracker, _ = fit_one_step(load, tmp_path)

    def check():
        step, logs = tracker.evaluations[-1]
        assert (step, logs["by_source"]["source"]["exact_match"]) == (1, 1.0)

    fails_on_stock(load, check, KeyError)


def test_a_run_is_evaluated_before_its_first_step(load, tmp_path):
    tracker, _ = fit_one_step(load, tmp_path)
    fails_on_stock(load, lambda: [step for step, _ in tracker.evaluations].index(0), ValueError)


def test_a_checkpoint_has_the_random_states(load, tmp_path):
    random.seed(5)
    _, [states] = fit_one_step(load, tmp_path)
    expected = random.random()

    def check():
        trainer_state.set_random_state(states["random"])
        assert random.random() == expected

    fails_on_stock(load, check, KeyError)


def test_a_checkpoint_leaves_the_frozen_model_out(load, peft_model, single_rank, tmp_path, monkeypatch):
    def save_everything(*_, **__):
        raise AssertionError("DeepSpeed writes every parameter")

    monkeypatch.setattr(trainer_state, "save", lambda *_: None)
    module = load("trainer.ray.ppo_actor")
    actor = object.__new__(module.PolicyModelActor.__ray_metadata__.modified_class)
    args = argparse.Namespace(
        ckpt_path=str(tmp_path), max_ckpt_num=1, max_ckpt_mem=1, metrics_dir=None, run_dir=str(tmp_path), lora_rank=2
    )
    actor.strategy = SimpleNamespace(args=args, save_ckpt=save_everything)
    actor.actor = SimpleNamespace(model=SimpleNamespace(module=peft_model))
    actor.disable_ds_ckpt = actor.save_hf_ckpt = False

    def check():
        actor.save_checkpoint("tag", {"global_step": 3})
        assert (tmp_path / "step_3" / "adapter" / "adapter_model.safetensors").is_file()

    fails_on_stock(load, check)


def test_an_adapter_needs_no_group_with_the_engines(load, single_rank):
    def join(*_, **__):
        raise AssertionError("an NCCL group of trainer and engines")

    module = load("trainer.ray.ppo_actor")
    off = ("colocate_all_models", "async_train", "use_dynamic_batch", "packing_samples", "enable_vllm_is_correction")
    args = MagicMock(
        eps_clip_low_high=[0.2, 0.2], aux_loss_coef=0.0, vllm_sync_backend="nccl", vllm_num_engines=1,
        vllm_tensor_parallel_size=1, lora_rank=2, max_epochs=1, policy_loss_type="ppo", dual_clip=None,
        vllm_is_correction_type="tis",
        **dict.fromkeys(off, False),
    )  # fmt: skip
    engine = SimpleNamespace(init_process_group=SimpleNamespace(remote=join))
    model = MagicMock(global_steps=0)

    def check():
        module.ActorPPOTrainer(
            MagicMock(args=args), SimpleNamespace(model=model), None, None, None, tokenizer=[], vllm_engines=[engine]
        )

    fails_on_stock(load, check)
