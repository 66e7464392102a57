"""OpenRLHF's loop with PIPELINE=1: it samples a step ahead, and sends no adapter meanwhile."""

import math
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from openrlhf.trainer import ppo_trainer

from grpo.metrics import step_metrics
from grpo.run import evaluation, run_log

from .judged import Judged


class Loop:
    """OpenRLHF's own loop, whose parts note what is being sampled meanwhile.

    Sampling ahead ends only once the step before has trained, and a batch gets its rewards only once the next one is
    begun: a loop that does not overlap these stands still.
    """

    def __init__(self, monkeypatch, run_dir):
        self.begun, self.sampling, self.trained, self.seen = 0, 0, 0, []
        self.changed = threading.Condition()
        self.trainer = this = object.__new__(ppo_trainer.PPOTrainer.__ray_metadata__.modified_class)
        this.args = SimpleNamespace(
            pipeline=True, num_episodes=1, max_steps=3, eval_steps=1, parity_limit=0.0, length_schedule=None,
            partial_rollouts=0, routing_replay=False,
            generate_max_len=9, dynamic_filtering=False, resume_from=None, use_dynamic_batch=False,
            run_dir=str(run_dir), save_steps=math.inf,
        )  # fmt: skip
        this.generate_kwargs, this.kl_ctl, this.vllm_engines = {}, None, ["engine"]
        # OpenRLHF 0.9.3 and 0.9.6 call one or the other.
        this.tokenizer = SimpleNamespace(**dict.fromkeys(("batch_decode", "decode"), lambda *_, **__: [""]))
        this.prompts_dataloader = type("Loader", (list,), {"state_dict": lambda _: {}})([None] * 9)
        this.eval_dataloader, this.critic_model_group = ["problem"], None
        this.wandb_logger = this.tensorboard_logger = None
        this.samples_generator = type(
            "Generator", (Judged,), {"generate_samples": lambda mine, **_: self._generate(mine)}
        )()
        this.experience_maker = SimpleNamespace(make_experience_batch=lambda samples: samples)
        this.actor_model_group = SimpleNamespace(async_run_method_batch=lambda **_: [])
        this.ppo_train = self._train
        this.broadcast_to_vllm = lambda: self._note("sync")
        this.save_logs_and_checkpoints = lambda *_: self._note("save")
        trackers = SimpleNamespace(close=lambda: None)
        log = SimpleNamespace(
            replacing=nullcontext,
            write_replaced=lambda _: None,
            write_rollouts=lambda *_: None,
            write_step=lambda *_: None,
            trackers=trackers,
            timed=lambda _, call: call,
            note_seconds=lambda *_: None,
        )
        monkeypatch.setattr(ppo_trainer.ray, "get", lambda references: references)
        monkeypatch.setattr(run_log, "attach", lambda *_: log)
        monkeypatch.setattr(evaluation, "run", lambda _, step: self._note(f"evaluation {step}"))
        monkeypatch.setattr(evaluation, "run_first", lambda *_: None)
        monkeypatch.setattr(evaluation, "run_last", lambda *_: None)
        for name in ("before_training", "after_training"):
            monkeypatch.setattr(step_metrics, name, lambda *_: None)

    def _note(self, what):
        self.seen.append((what, self.sampling))

    def _generate(self, generator):
        with self.changed:
            self.begun += 1
            batch, self.sampling = self.begun, self.sampling + 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.trained >= batch - 1, 60)
        time.sleep(0.2)  # a loop that does not wait for it has sent the adapter by then
        with self.changed:
            self.sampling -= 1
            generator.sampled.set()
            if batch < self.trainer.args.max_steps:
                assert self.changed.wait_for(lambda: self.begun > batch, 60)
        info = {"reward": torch.tensor([1.0]), "truncated": torch.zeros(1), "length_limit": torch.tensor([9.0])}
        return [SimpleNamespace(sequences=torch.tensor([[1]]), info=info)], None, 1, False

    def _train(self, _):
        with self.changed:
            if self.trained + 1 < self.trainer.args.max_steps:
                assert self.changed.wait_for(lambda: self.sampling, 60)
            self._note("train")
            self.trained += 1
            self.changed.notify_all()
        return {"grad_norms": [0.1, 0.1]}


def test_openrlhfs_loop_samples_only_while_it_trains(monkeypatch, tmp_path):
    loop = Loop(monkeypatch, tmp_path)
    loop.trainer.fit()
    step = [("sync", 0), ("save", 0)]
    assert loop.seen == [
        *[("train", 1), *step, ("evaluation 1", 0)],
        *[("train", 1), *step, ("evaluation 2", 0)],
        *[("train", 0), *step, ("evaluation 3", 0)],  # no step comes after it
    ]
