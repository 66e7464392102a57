"""A checkpoint between two steps: only while the ranks are idle, and with the state of the last completed step."""

import math
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from grpo.checkpoint.on_request import SaveOnRequest
from grpo.run.run_files import RunFiles
from grpo.run.save_request import SaveRequest
from tests.supervised import wait_until

SAVE_STEPS = 3


class Trainer:
    """A controller of one rank, which notes what it saves."""

    def __init__(self, folder: Path) -> None:
        self.args = SimpleNamespace(run_dir=str(folder), save_steps=SAVE_STEPS)
        self.saved: list[dict] = []
        self.actor_model_group = SimpleNamespace(async_run_method=self._save)
        self.experience_maker = SimpleNamespace(make_experience_batch=lambda samples: samples)

    def _save(self, method_name: str, tag: str, client_states: dict) -> list[dict]:
        assert method_name == "save_checkpoint" and tag == f"global_step{client_states['global_step']}"
        self.saved.append(client_states)
        return []

    def save_logs_and_checkpoints(self, step: int, logs: dict, states: dict) -> None:
        if step % self.args.save_steps == 0:
            self._save("save_checkpoint", f"global_step{step}", states)

    def step(self, step: int, states: dict | None = None) -> None:
        self.experience_maker.make_experience_batch([])
        self.save_logs_and_checkpoints(step, {}, {"global_step": step} if states is None else states)


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    monkeypatch.setattr(ray, "get", list)
    made = Trainer(tmp_path)
    made.saver = SaveOnRequest(made, step=0)
    return made


@pytest.fixture
def request_(tmp_path: Path) -> SaveRequest:
    return SaveRequest(RunFiles(tmp_path).save_request)


def answered(request: SaveRequest) -> None:
    wait_until(lambda: not request.is_open(), "nobody saved", 10)


def test_the_last_completed_step_is_saved_as_it_was(trainer: Trainer, request_: SaveRequest) -> None:
    states = {"global_step": 1, "position": [1]}
    trainer.step(1, states)
    states["position"].append(2)  # the loop goes on
    request_.ask()
    answered(request_)
    assert trainer.saved == [{"global_step": 1, "position": [1]}]


def test_a_step_that_is_saved_already_and_a_run_without_a_step_need_nothing(trainer: Trainer, request_) -> None:
    request_.ask()
    answered(request_)
    for step in range(1, SAVE_STEPS + 1):
        trainer.step(step)
    request_.ask()
    answered(request_)
    assert trainer.saved == [{"global_step": SAVE_STEPS}] and not request_.failure()


@pytest.mark.parametrize(("last", "save_steps", "saved"), [(4, 3, [3, 4]), (3, 3, [3]), (4, math.inf, [])])
def test_the_last_step_is_a_checkpoint_unless_none_is(trainer: Trainer, last: int, save_steps: float, saved) -> None:
    trainer.args.save_steps = save_steps
    for step in range(1, last + 1):
        trainer.step(step)
    trainer.saver.save_last()
    assert [states["global_step"] for states in trainer.saved] == saved


def test_a_checkpoint_that_cannot_be_saved_says_why_and_may_be_asked_for_again(trainer, request_, monkeypatch) -> None:
    trainer.step(1)
    with monkeypatch.context() as patch:
        patch.setattr(ray, "get", raises(OSError(28, "No space left on device")))
        request_.ask()
        answered(request_)
    assert request_.failure() == "OSError: [Errno 28] No space left on device"
    request_.ask()
    answered(request_)
    assert not request_.failure()


def raises(error: Exception) -> Callable:
    def function(*_: object) -> None:
        raise error

    return function


def test_a_request_waits_for_the_end_of_the_update(trainer: Trainer, request_: SaveRequest) -> None:
    trainer.step(1)
    trainer.experience_maker.make_experience_batch([])
    request_.ask()
    later = threading.Event()
    later.wait(1.0)
    assert request_.is_open() and not trainer.saved, "the ranks are in the middle of an update"
    trainer.save_logs_and_checkpoints(2, {}, {"global_step": 2})
    answered(request_)
    assert trainer.saved == [{"global_step": 2}]


def test_the_next_update_waits_for_the_checkpoint(trainer: Trainer, request_, monkeypatch) -> None:
    trainer.step(1)
    saving, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(ray, "get", lambda refs: (saving.set(), may_end.wait(10)))
    request_.ask()
    assert saving.wait(10)
    update = threading.Thread(target=trainer.step, args=(2,))
    update.start()
    update.join(0.5)
    assert update.is_alive(), "the ranks are saving"
    may_end.set()
    update.join(10)
    assert not update.is_alive()


def test_what_must_be_waited_for_is_computed_for_checkpoints_alone(trainer: Trainer, request_: SaveRequest) -> None:
    """With PIPELINE=1, rewards of the next batch may be missing at the end of a step."""
    computed: list[int] = []
    for step in range(1, SAVE_STEPS + 2):
        trainer.step(step, {"global_step": step, "ahead": lambda step=step: computed.append(step) or {"step": step}})
    assert computed == [SAVE_STEPS]
    request_.ask()
    answered(request_)
    assert computed == [SAVE_STEPS, SAVE_STEPS + 1]
    assert [saved["ahead"] for saved in trainer.saved] == [{"step": SAVE_STEPS}, {"step": SAVE_STEPS + 1}]
