"""Rollouts with several samples, made into micro-batches with advantages."""

import asyncio
from types import SimpleNamespace

import torch

from grpo.flags.upstream import trainer_parser
from grpo.rollout.harmony import template_for
from grpo.rollout.multi_turn import EnginePolicy, roll_out
from grpo.train import micro_batches, passes, rollouts
from grpo.train.trainer import Trainer
from tests.grpo.environments.scripted import LIMITS, Library, ScriptedEngine, make_params
from tests.grpo.rollout.tokenizer import TOKENIZER

N = 2  # samples a prompt
# Those that the launcher accepts: it refuses gae, which needs a critic.
ESTIMATORS = [
    name
    for action in trainer_parser()._actions
    if action.dest == "advantage_estimator"
    for name in action.choices
    if name != "gae"
]
PLAIN = ["<|channel|>final<|message|>42<|return|>"]
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>there<|return|>"
THOUGHTFUL = [THOUGHT] * 3 + PLAIN


def make_arguments(estimator="dr_grpo"):
    return SimpleNamespace(
        remote_rm_url=["agent"], n_samples_per_prompt=N, micro_rollout_batch_size=2,
        advantage_estimator=estimator, gamma=1.0, lambd=1.0, reward_clip_range=(-10, 10), init_kl_coef=0,
        overlong_buffer_len=None, stop_properly_penalty_coef=None, use_kl_loss=False,
        prompt_max_len=0, colocate_all_models=False, rollout_batch_size=2,
        max_epochs=1, train_batch_size=4, no_advantage_std_norm=False,
        routing_replay=True, mask_truncated=False,
    )  # fmt: skip


def make_response(script, replies, reward):
    template = template_for(TOKENIZER)
    policy = EnginePolicy(template, ScriptedEngine(template.codec, script), make_params(), 900)
    _, made = asyncio.run(roll_out(lambda: Library(replies=replies), policy, LIMITS, 9))
    return {"prompt": "where?", "label": "", **made, "reward": reward, "scores": reward}


def make_plain_response(reward, length=3):
    """A response of so many tokens, as OpenRLHF's executor returns it; without any, the trainer has cut it off."""
    log_probs = [0.0, 0.0, *[-0.5] * length]
    return {
        "prompt": "p", "label": "", "reward": reward, "scores": reward, "truncated": False, "extra_logs": {},
        "observation_tokens": [3, 4, *range(5, 5 + length)], "action_ranges": [(2, 2 + length)],
        "rollout_log_probs": log_probs,
    }  # fmt: skip


def make_batches(responses, monkeypatch, *estimator, limit=900, **changes):
    """Return the rollouts and their micro-batches, with log-probs that identify their tokens instead of the actor's."""
    trainer = object.__new__(Trainer)
    trainer.args, trainer.tokenizer, trainer.actors = make_arguments(*estimator), TOKENIZER, None
    vars(trainer.args).update(changes)
    made = [rollouts.build_rollout(one, trainer.args, TOKENIZER, limit) for one in responses]

    def add_log_probs(batches, *_):
        for batch in batches:
            batch.action_log_probs = -batch.sequences[:, 1:] / 100.0
            batch.kl = torch.zeros_like(batch.action_log_probs)
            batch.info["kl"] = torch.zeros(len(batch.prompts))

    monkeypatch.setattr(passes, "add_log_probs", add_log_probs)
    return made, trainer._compute_advantages(made)[0]


def make_four_rollouts(monkeypatch, *estimator, branching=True):
    """Two prompts with two samples each. The first and the last rollout have branches, or none does."""
    scripts = [THOUGHTFUL if branching else PLAIN, PLAIN, PLAIN, THOUGHTFUL if branching else PLAIN]
    replies = [["a", "b", "c"], [], [], ["a"]] if branching else [[]] * 4
    responses = [make_response(*each) for each in zip(scripts, replies, [1.0, 0.0, 0.5, 0.5], strict=True)]
    return make_batches(responses, monkeypatch, *estimator)


def list_rows(made):
    """The rollouts of micro-batches, as a rank keeps them."""
    return [rollout for batch in made for rollout in micro_batches.split_by_rollout(batch)]
