"""Rollouts with several samples, made into experiences by OpenRLHF's own classes."""

import asyncio
from types import SimpleNamespace

import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker, SamplesGenerator
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from grpo.batch import branches
from grpo.launch.config import trainer_parser
from grpo.rollout.multi_turn.rollout import EnginePolicy, roll_out
from grpo.rollout.multi_turn.templates import template_for
from tests.grpo.rollout.multi_turn.dialects import TOKENIZERS
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, ScriptedEngine, params

TOKENIZER = TOKENIZERS["qwen3"]
N = 2  # samples a prompt
# Those that the launcher accepts: it refuses gae, which needs a critic.
ESTIMATORS = [
    name
    for action in trainer_parser()._actions
    if action.dest == "advantage_estimator"
    for name in action.choices
    if name != "gae"
]
THOUGHTFUL = ["<think>\nhm\n</think>\n\nthere<|im_end|>"] * 3 + ["42<|im_end|>"]
PLAIN = ["42<|im_end|>"]


def arguments(estimator="dr_grpo"):
    return SimpleNamespace(
        remote_rm_url=["agent"], n_samples_per_prompt=N, micro_rollout_batch_size=2, use_dynamic_batch=False,
        advantage_estimator=estimator, gamma=1.0, lambd=1.0, reward_clip_range=(-10, 10), init_kl_coef=0,
        overlong_buffer_len=None, stop_properly_penalty_coef=None, use_kl_loss=False, ring_attn_size=1,
        ds_tensor_parallel_size=1, colocate_all_models=False, colocate_actor_ref=False, rollout_batch_size=2,
        max_epochs=1, train_batch_size=4, drop_repetition=None, drop_gibberish=None, no_advantage_std_norm=False,
        routing_replay=True,
    )  # fmt: skip


def response(script, replies, reward):
    template = template_for(TOKENIZER)
    policy = EnginePolicy(template, ScriptedEngine(template.codec, script), params(), 900)
    _, made = asyncio.run(roll_out(lambda: Library(replies=replies), policy, LIMITS, 9))
    return {"prompt": "where?", "label": "", **made, "reward": reward, "scores": reward}


def made_experiences(responses, monkeypatch, *estimator, **changes):
    """Return the result of make_experience_batch, with log-probs that identify their tokens instead of the actor's."""
    args = arguments(*estimator)
    vars(args).update(changes)
    generator = SamplesGenerator.__new__(SamplesGenerator)
    generator.args, generator.tokenizer = args, TOKENIZER
    rollouts = [branches.experience_of(generator, one, max_new_tokens=900) for one in responses]
    maker = RemoteExperienceMaker(
        None, None, None, None, SimpleNamespace(value=0.0), SimpleNamespace(args=args), TOKENIZER
    )

    def make_experience(batches):
        for batch in batches:
            batch.action_log_probs = -batch.sequences[:, 1:] / 100.0
            batch.kl = torch.zeros_like(batch.action_log_probs)
            batch.info["kl"] = torch.zeros(len(batch.sequences))
        return batches

    monkeypatch.setattr(maker, "make_experience", make_experience)
    return rollouts, maker.make_experience_batch(rollouts)


def four(monkeypatch, *estimator, branching=True):
    """Two prompts with two samples each. The first and the last rollout have branches, or none does."""
    scripts = [THOUGHTFUL if branching else PLAIN, PLAIN, PLAIN, THOUGHTFUL if branching else PLAIN]
    replies = [["a", "b", "c"], [], [], ["a"]]
    responses = [response(*each) for each in zip(scripts, replies, [1.0, 0.0, 0.5, 0.5], strict=True)]
    return made_experiences(responses, monkeypatch, *estimator)


def buffered(made, micro):
    buffer = NaiveReplayBuffer(micro, cpu_offload=False)
    for batch in made:
        buffer.append(batch)
    return buffer
