"""Steps of OpenRLHF's own sample generator, with its own prompt loader, and engines that answer in any order and time.

An answer's score follows from its seed and from how hard its problem is: problem 0 is never solved, the last always.
"""

import argparse
import hashlib
import itertools
import random
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils import experience_maker
from torchdata.stateful_dataloader import StatefulDataLoader

from grpo.batch import ahead, filtering, unfinished
from grpo.hooks import ppo_trainer as hooks
from grpo.rollout import continued, replacement

SETTINGS = {
    "seed": 3, "rollout_batch_size": 3, "n_samples_per_prompt": 4, "dynamic_filtering": True,
    "dynamic_filtering_reward_range": [0, 1], "dynamic_filtering_batches": 4, "retire_after": None, "retire_for": 2,
    "routing_replay": False, "remote_rm_url": ["r.py"], "vllm_enable_sleep": False,
    "pipeline": False, "num_episodes": 200, "max_steps": None, "partial_rollouts": 0, "partial_policies": 2,
}  # fmt: skip


class Problems:
    """A data set as OpenRLHF's loader reads it."""

    def __init__(self, count: int) -> None:
        self.prompts = [f"{number} of {count - 1}" for number in range(count)]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> tuple[str, str, str]:
        return "source", self.prompts[index], "label"


def difficulty(prompt: str) -> float:
    """How often a problem is solved."""
    number, last = prompt.split(" of ")
    return int(number) / int(last)


def answers(prompt: str, seed: int, count: int, policy: int, call: int) -> list[dict[str, Any]]:
    digests = [hashlib.sha256(f"{seed + number}".encode()).digest() for number in range(count)]
    draws = [int.from_bytes(digest[:6]) / 2**48 for digest in digests]
    origin = {continued.POLICIES: np.array([-1, policy]), continued.GROUP: seed, continued.LIMIT: 1}
    return [{"prompt": prompt, "score": float(draw < difficulty(prompt)), "draw": draw} | origin for draw in draws]


class FakeRay:
    """Engines that sample at once. Rewards come late at times, and in an order of their own."""

    def __init__(self, order: int) -> None:
        self._order = random.Random(order)

    def wait(self, references: list, **_: Any) -> tuple[list, list]:
        first = self._order.randrange(-1, len(references))
        if first < 0:
            time.sleep(0.001)  # other threads go on
            return [], references
        return [references[first]], references[:first] + references[first + 1 :]

    @staticmethod
    def get(reference: Any) -> Any:
        return answers(*reference) if isinstance(reference, tuple) else reference


class Run:
    """The generator's part of a run.

    Attributes:
        known: the calls of a checkpoint that the engines got.
        rows: of each step what it trains on (prompt and random number of each sample), and its metrics.
        states: what a checkpoint of each step would hold.
        oldest: of each step, by how many policies its oldest group is behind.
    """

    def __init__(self, monkeypatch: Any, order: int, problems: int = 12, **changes: Any) -> None:
        for module in (experience_maker, unfinished, replacement):
            monkeypatch.setattr(module, "ray", FakeRay(order))
        loader = StatefulDataLoader(Problems(problems), batch_size=1, shuffle=True, collate_fn=_columns)
        self.args = argparse.Namespace(**SETTINGS | changes)
        count, calls = SimpleNamespace(remote=lambda: 0), itertools.count()

        def generate(prompt: str, sampling_params: Any, num_samples: int, **_: Any) -> tuple:
            self._sampled.append(sampling_params.seed)
            return prompt, sampling_params.seed, num_samples, self._synced, next(calls)

        answer = SimpleNamespace(remote=generate)
        self.known: dict[str, Any] = {}
        self._sampled: list[int] = []
        self._synced = 0  # the engines' policy
        engine = SimpleNamespace(
            get_num_unfinished_requests=count, generate_responses=answer, cut=SimpleNamespace(remote=lambda: None),
            sampled=SimpleNamespace(remote=lambda: list(self._sampled)),
            go_on=SimpleNamespace(remote=lambda policy, rollouts, known: self.known.update(known)),
            calls=SimpleNamespace(remote=lambda rollouts: {name: [{"of": name}] for name in rollouts}),
        )  # fmt: skip
        strategy = SimpleNamespace(args=self.args)
        self.generator = experience_maker.SamplesGenerator(strategy, loader, None, None, [engine])
        self.generator._process_response_into_experience = _sample
        self.batches = ahead.Batches(self.generator, lambda _: {}, self.args.num_episodes)
        self._trainer = SimpleNamespace(
            samples_generator=self.generator, prompts_dataloader=loader, batches=self.batches, args=self.args,
            parity_gate=SimpleNamespace(is_due=lambda args: False),
        )  # fmt: skip
        self.rows: list[tuple[list, dict]] = []
        self.states: list[dict] = []
        self.oldest: list[float] = []
        self._step = self._episode = 0

    def until(self, step: int) -> "Run":
        """Make global steps until this one, as OpenRLHF's loop does; the policy's number is that of its last step."""
        while self._step < step and self._episode < self.args.num_episodes:
            samples, pass_rate, _, is_exhausted = hooks.next_batch(self._trainer, self._episode, self._step + 1)
            if is_exhausted:
                self._episode += 1
                continue
            self._step += 1
            metrics = filtering.finish_step(self.generator, self.batches.current.groups) | {"pass_rate": pass_rate}
            metrics["staleness"] = self.batches.staleness()
            # Not of a resumed run: these engines do not know what a checkpoint holds of a group.
            self.oldest.append(unfinished.metrics(samples, self.batches.policy, self.args).get("staleness_max", 0.0))
            self.batches.policy += 1
            self.batches.wait()
            unfinished.cut(self.generator)
            self._synced = self.batches.policy
            self.rows.append(([(sample.prompts[0], float(sample.draw)) for sample in samples], metrics))
            loader = self.generator.prompts_dataloader.state_dict()
            state = {"global_step": self._step, "episode": self._episode, "loader": loader}
            states = hooks.states(self._trainer, {})
            self.states.append(state | {name: value() if callable(value) else value for name, value in states.items()})
        return self

    def resume(self, state: dict) -> "Run":
        """Continue from what a checkpoint holds, as OpenRLHF's loop and our hooks do."""
        self._step, self._episode = state["global_step"], state["episode"]
        self.generator.prompts_dataloader.load_state_dict(state["loader"])
        hooks.restore(self._trainer, state)
        if "unfinished" in state:
            self.batches.policy = state["unfinished"]["policy"]
            unfinished.restore(self.generator, state["unfinished"], SimpleNamespace)
        if "ahead" in state:
            self.batches.restore(state["ahead"], SimpleNamespace)
        self._synced = self.batches.policy
        return self


def _columns(items: list[tuple[str, str, str]]) -> tuple[list[str], ...]:
    return tuple(map(list, zip(*items, strict=True)))


def _sample(response: dict[str, Any], **_: Any) -> SimpleNamespace:
    score = torch.tensor([response["score"]])
    return SimpleNamespace(
        prompts=[response["prompt"]], scores=score, rewards=score, info={}, rollout_log_probs=None,
        draw=response["draw"], sequences=torch.tensor([[0, 1]]), action_mask=torch.tensor([[1]]),
    )  # fmt: skip
