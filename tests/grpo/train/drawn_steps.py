"""Steps of the sampler with OpenRLHF's prompt loader, and engines that answer in any order and time.

An answer's score follows from its seed and from how hard its problem is: problem 0 is never solved, the last always.
"""

import argparse
import hashlib
import itertools
import random
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from grpo.train import lengths, prefetch, rollout_filters, sampler
from grpo.train.trainer import Trainer

SETTINGS = {
    "seed": 3, "rollout_batch_size": 3, "n_samples_per_prompt": 4, "dynamic_filtering": True,
    "dynamic_filtering_reward_range": [0, 1], "dynamic_filtering_batches": 4,
    "routing_replay": False, "remote_rm_url": ["r.py"], "vllm_enable_sleep": False,
    "pipeline": False, "temperature": 1.0, "top_p": 1.0, "prompt_max_len": 1, "generate_max_len": 1,
    "length_schedule": None, "num_episodes": 200, "max_steps": None,
}  # fmt: skip


class Problems:
    """A data set as OpenRLHF's loader reads it."""

    def __init__(self, count: int) -> None:
        self.prompts = [f"{number} of {count - 1}" for number in range(count)]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> tuple[str, str, str]:
        return "source", self.prompts[index], "label"


def get_difficulty(prompt: str) -> float:
    """How often a problem is solved."""
    number, last = prompt.split(" of ")
    return int(number) / int(last)


def draw_answers(prompt: str, seed: int, count: int, call: int) -> list[dict[str, Any]]:
    digests = [hashlib.sha256(f"{seed + number}".encode()).digest() for number in range(count)]
    draws = [int.from_bytes(digest[:6]) / 2**48 for digest in digests]
    return [{"prompt": prompt, "score": float(draw < get_difficulty(prompt)), "draw": draw} for draw in draws]


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
        return draw_answers(*reference) if isinstance(reference, tuple) else reference


class Run:
    """The controller's part of a run that samples.

    Attributes:
        rows: of each step what it trains on (prompt and random number of each sample), and its metrics.
        states: what a checkpoint of each step would hold.
    """

    def __init__(self, monkeypatch: Any, order: int, problems: int = 12, **changes: Any) -> None:
        monkeypatch.setattr(sampler, "ray", FakeRay(order))
        monkeypatch.setattr(sampler, "build_rollout", _make_sample)
        loader = StatefulDataLoader(Problems(problems), batch_size=1, shuffle=True, collate_fn=_split_columns)
        self.args = argparse.Namespace(**SETTINGS | changes)
        count, calls = SimpleNamespace(remote=lambda: 0), itertools.count()

        def generate(prompt: str, sampling_params: Any, num_samples: int, **_: Any) -> tuple:
            self._sampled.append(sampling_params.seed)
            return prompt, sampling_params.seed, num_samples, next(calls)

        answer = SimpleNamespace(remote=generate)
        self._sampled: list[int] = []
        engine = SimpleNamespace(
            get_num_unfinished_requests=count, generate_responses=answer,
            sampled=SimpleNamespace(remote=lambda: list(self._sampled)),
        )  # fmt: skip
        self.trainer = object.__new__(Trainer)
        self.trainer.args, self.trainer.problems = self.args, loader
        self.trainer.step = self.trainer.episode = self.trainer.drawn_prompts = 0
        self.trainer.lengths = lengths.Schedule(self.args)
        gate = SimpleNamespace(is_due=lambda: False)
        self.trainer.sampler = self.sampler = sampler.Sampler(
            self.args, None, [engine], loader, None, self.trainer.lengths, gate
        )
        log = SimpleNamespace(phase=lambda _: nullcontext(), note_seconds=lambda *_: None)
        self.trainer.prefetch = self.prefetch = prefetch.Prefetch(self.args, self.sampler, log)
        self.rows: list[tuple[list, dict]] = []
        self.states: list[dict] = []

    def run_until(self, until: int) -> "Run":
        """Make global steps until this one, as the loop does; the policy's number is that of its last step."""
        trainer = self.trainer
        while trainer.step < until and trainer.episode < self.args.num_episodes:
            number = trainer.step + 1
            if self.args.pipeline and not trainer._is_last(number):
                self.prefetch.start_next_batch(trainer.episode, number)
            drawn = self.prefetch.take(trainer.episode, number)
            if drawn.is_over:
                trainer.episode += 1
                continue
            trainer.step += 1
            metrics = rollout_filters.compute_metrics(self.args, self.prefetch.current.groups)
            metrics["staleness"] = self.prefetch.compute_staleness()
            self.prefetch.policy += 1
            self.prefetch.wait_until_sampled()
            self.rows.append(([(sample.prompts[0], float(sample.draw)) for sample in drawn.rollouts], metrics))
            states = trainer._collect_states({}, drawn.rollouts)
            self.states.append({name: value() if callable(value) else value for name, value in states.items()})
        return self

    def resume(self, state: dict) -> "Run":
        """Continue from what a checkpoint holds."""
        self.trainer.step, self.trainer.episode = state["global_step"], state["episode"]
        self.trainer._restore(state)
        return self


def _split_columns(items: list[tuple[str, str, str]]) -> tuple[list[str], ...]:
    return tuple(map(list, zip(*items, strict=True)))


def _make_sample(response: dict[str, Any], *_: Any) -> SimpleNamespace:
    score = torch.tensor([response["score"]])
    info = {"length_limit": torch.tensor([1.0]), "truncated": torch.tensor([0.0])}
    return SimpleNamespace(
        prompts=[response["prompt"]], scores=score, rewards=score, info=info, rollout_log_probs=None,
        draw=response["draw"], sequences=torch.tensor([[0, 1]]), action_mask=torch.tensor([[1]]),
    )  # fmt: skip
