"""Batches that are sampled a step ahead: the same ones in any order of the engines, and after a resume."""

import collections
import io
import math
import threading
import time
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openrlhf.trainer import ppo_trainer

from grpo.batch.ahead import Batches
from grpo.metrics import step_metrics
from grpo.run import evaluation, run_log
from reward import judge_place
from tests.supervised import wait_until

from .drawn_steps import Run

STEPS = 6
CHANGES = st.fixed_dictionaries(
    {
        "problems": st.integers(5, 14),
        "dynamic_filtering": st.booleans(),
        "retire_after": st.sampled_from([None, 1]),
        "num_episodes": st.sampled_from([2, 200]),
        "seed": st.integers(0, 99),
    }
)
any_settings = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def saved(state: dict) -> dict:
    """What a checkpoint gives back, which holds tensors and plain values only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@any_settings
@given(CHANGES, st.integers(1, STEPS - 1))
def test_a_resumed_run_has_the_batches_of_an_uninterrupted_one(monkeypatch, changes, at):
    whole = Run(monkeypatch, order=1, pipeline=True, **changes).until(STEPS)
    assert Run(monkeypatch, order=2, pipeline=True, **changes).until(STEPS).rows == whole.rows
    if at < len(whole.rows):
        resumed = Run(monkeypatch, order=3, pipeline=True, **changes).resume(saved(whole.states[at - 1])).until(STEPS)
        assert resumed.rows == whole.rows[at:]


@any_settings
@given(CHANGES)
def test_only_the_policy_that_samples_differs_from_steps_in_turn(monkeypatch, changes):
    """What a step draws follows from run, step, and prompt, unless it depends on what earlier steps solved."""
    changes["retire_after"] = None
    ahead, in_turn = (Run(monkeypatch, order=1, pipeline=on, **changes).until(STEPS) for on in (True, False))
    assert [samples for samples, _ in ahead.rows] == [samples for samples, _ in in_turn.rows]
    assert [metrics["staleness"] for _, metrics in in_turn.rows] == [0] * len(in_turn.rows)
    assert [metrics["staleness"] for _, metrics in ahead.rows] == [0, *[1] * (len(ahead.rows) - 1)]


def test_a_checkpoint_holds_the_next_batch_only_with_pipeline(monkeypatch):
    ahead, in_turn = (Run(monkeypatch, order=1, pipeline=on).until(3) for on in (True, False))
    assert [state["ahead"]["step"] for state in ahead.states] == [2, 3, 4]
    assert all("ahead" not in state for state in in_turn.states)


def test_without_pipeline_a_saved_batch_comes_first(monkeypatch):
    whole = Run(monkeypatch, order=1, pipeline=True).until(3)
    resumed = Run(monkeypatch, order=1).resume(saved(whole.states[1])).until(4)
    assert resumed.rows[0] == whole.rows[2]
    assert [metrics["staleness"] for _, metrics in resumed.rows] == [1, 0]


def test_the_last_step_samples_nothing_ahead(monkeypatch):
    run = Run(monkeypatch, order=1, pipeline=True, max_steps=3).until(3)
    assert "ahead" in run.states[1] and "ahead" not in run.states[2]


class Judged:
    """A generator whose batches are sampled and get their rewards when they are told to.

    Attributes:
        begun: the arguments of the batches that were begun.
        may_be_sampled, may_be_rewarded: whether a batch may go on, by its step.
    """

    def __init__(self, error: Exception | None = None, **changes) -> None:
        values = {"retire_after": None, "retire_for": 1, "seed": 0, "dynamic_filtering": False, "partial_rollouts": 0}
        self.args = SimpleNamespace(**values | {"pipeline": True} | changes)
        self.prompts_dataloader = SimpleNamespace(sampler=SimpleNamespace(generator=torch.Generator()))
        self.begun, self.error = [], error
        self.may_be_sampled, self.may_be_rewarded = (collections.defaultdict(threading.Event) for _ in range(2))

    def generate_samples(self, **arguments):
        step = int(self.stage.removeprefix("train "))
        self.begun.append(arguments)
        assert self.may_be_sampled[step].wait(60)
        if self.sampled is not None:
            self.sampled.set()
        assert self.may_be_rewarded[step].wait(60)
        if self.error:
            raise self.error
        return [SimpleNamespace(of=step)], None, 1, False


def batches_of(generator: Judged) -> Batches:
    return Batches(generator, lambda step: {"step": step}, episodes=1)


def in_thread(function, *arguments) -> Future:
    result = Future()

    def run():
        try:
            result.set_result(function(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def test_the_next_batch_is_begun_while_rewards_are_missing():
    generator = Judged()
    batches = batches_of(generator)
    asked = in_thread(batches.sample_ahead, 0, 1)
    wait_until(lambda: generator.begun, "the first batch was not begun")
    assert not asked.done() and generator.begun == [{"step": 1}], "the engines still sample the first one"
    generator.may_be_sampled[1].set()
    asked.result(60)
    wait_until(lambda: generator.begun == [{"step": 1}, {"step": 2}], "the second batch was not begun")
    taken, waited = in_thread(batches.take, 0, 1), in_thread(batches.wait)
    assert not taken.done() and not waited.done()
    generator.may_be_sampled[2].set()
    waited.result(60)  # the sync may come, with all rewards missing
    assert not taken.done()
    generator.may_be_rewarded[1].set()
    assert taken.result(60) == ([SimpleNamespace(of=1)], None, 1, False)
    batches.sample_ahead(0, 2)
    wait_until(lambda: generator.begun[2:] == [{"step": 3}], "the third batch was not begun")
    taken = in_thread(batches.take, 0, 2)
    generator.may_be_rewarded[2].set()
    assert taken.result(60) == ([SimpleNamespace(of=2)], None, 1, False)


def test_the_policy_of_a_batch_is_the_one_of_the_last_sync():
    """Batch 3 is begun before batch 2 has its rewards, and by the policy after step 1 as without a judge."""
    policies = []
    for is_late in (False, True):
        generator = Judged()
        batches = batches_of(generator)
        for step in range(1, 5):
            generator.may_be_sampled[step].set()
            if not is_late:
                generator.may_be_rewarded[step].set()
        for step in range(1, 4):
            batches.sample_ahead(0, step)
            taken = in_thread(batches.take, 0, step)
            generator.may_be_rewarded[step].set()
            taken.result(60)
            policies.append((step, batches.current.policy, batches.staleness()))
            batches.policy += 1
            batches.wait()
    assert policies == 2 * [(1, 0, 0), (2, 0, 1), (3, 1, 1)]


@pytest.mark.parametrize("changes", [{"dynamic_filtering": True}, {"partial_rollouts": 1}])
def test_where_rewards_decide_what_is_sampled_the_next_batch_waits_for_them(changes):
    generator = Judged(**changes)
    batches = batches_of(generator)
    asked = in_thread(batches.sample_ahead, 0, 1)
    generator.may_be_sampled[1].set()
    wait_until(lambda: generator.begun, "the first batch was not begun")
    assert not asked.done()
    generator.may_be_rewarded[1].set()
    asked.result(60)
    wait_until(lambda: generator.begun == [{"step": 1}, {"step": 2}], "the second batch was not begun")


def test_the_state_of_a_batch_has_its_rewards_and_stays_the_same_in_its_step():
    generator = Judged()
    generator.may_be_sampled[2].set()
    batches = batches_of(generator)
    for event in (generator.may_be_sampled[1], generator.may_be_rewarded[1]):
        event.set()
    batches.sample_ahead(0, 1)
    batches.take(0, 1)
    batches.policy = 4
    batches.wait()
    compute = batches.state()
    computed = in_thread(compute)
    batches.sample_ahead(0, 2)  # the next step begins, and with it batch 3
    assert not computed.done()
    generator.may_be_rewarded[2].set()
    state = {"step": 2, "staleness": 4, "groups": {"step": 2, "resting": [], "drawn": [], "filled": 0}}
    for again in (computed.result(60), compute()):
        assert again.pop("results") == [([{"of": 2}], None, 1, False)] and again == state
    assert batches.take(0, 2)[0] == [SimpleNamespace(of=2)]
    assert compute()["results"] == [([{"of": 2}], None, 1, False)]


def test_a_batch_is_sampled_with_the_arguments_of_its_start():
    generator, limit = Judged(), [5]
    batches = Batches(generator, lambda step: {"step": step, "limit": limit[0]}, episodes=1)
    generator.may_be_sampled[1].set()
    batches.sample_ahead(0, 1)
    limit[0] = 9
    wait_until(lambda: len(generator.begun) == 2, "the second batch was not begun")
    assert generator.begun == [{"step": 1, "limit": 5}, {"step": 2, "limit": 5}]


def test_the_parity_gate_gets_the_next_batch_with_its_rewards():
    generator = Judged()
    batches = batches_of(generator)
    assert batches.next_samples() == []
    generator.may_be_sampled[1].set()
    batches.sample_ahead(0, 1)
    samples = in_thread(batches.next_samples)
    assert not samples.done()
    generator.may_be_rewarded[1].set()
    assert samples.result(60) == [SimpleNamespace(of=1)]


def failing(generator: Judged) -> Batches:
    """Batches of which the second one fails."""
    batches = batches_of(generator)
    generator.may_be_sampled[1].set()
    batches.sample_ahead(0, 1)
    generator.may_be_sampled[2].set()
    for step in (1, 2):
        generator.may_be_rewarded[step].set()
    return batches


def test_what_goes_wrong_while_rewards_are_missing_is_raised_in_its_step():
    batches = failing(Judged(ValueError("the reward's service is down")))
    for _ in range(2):
        with pytest.raises(ValueError, match="service is down"):
            batches.take(0, 1)


def test_what_goes_wrong_while_sampling_is_raised_before_the_sync():
    generator = Judged(ValueError("an engine died"), dynamic_filtering=True)
    generator.may_be_sampled[1].set()
    generator.may_be_rewarded[1].set()
    batches = batches_of(generator)
    for call in (lambda: batches.sample_ahead(0, 1), batches.wait):
        with pytest.raises(ValueError, match="an engine died"):
            call()


def test_a_batch_that_a_dead_judge_spoilt_is_not_saved(monkeypatch):
    def require():
        raise RuntimeError("the judge's process has died")

    monkeypatch.setattr(judge_place, "require", require)
    batches = failing(Judged())
    for call in (lambda: batches.take(0, 1), batches.state()):
        with pytest.raises(RuntimeError, match="the judge's process has died"):
            call()


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


def test_a_sample_keeps_its_branches():
    """Rollouts of an environment have rows of their own class beside those of the trainer."""
    branch = SimpleNamespace(sequences=torch.tensor([[1, 2]]), info={})
    sample = SimpleNamespace(sequences=torch.tensor([[3]]), branches=[branch], sampled_by="engine", kl=None)
    generator = Judged()
    generator.generate_samples = lambda **_: ([sample], 12.5, 3, False)
    first, second = batches_of(generator), batches_of(generator)
    first.sample_ahead(0, 1)
    first.take(0, 1)
    first.policy = 4
    second.restore(saved(first.state()()), SimpleNamespace)
    ([again], *rest) = second.take(0, 2)
    assert rest == [12.5, 3, False] and second.staleness() == 4
    assert again.sampled_by == "engine" and again.kl is None and torch.equal(again.sequences, sample.sequences)
    assert torch.equal(again.branches[0].sequences, branch.sequences)
