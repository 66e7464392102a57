"""A checkpoint between two steps: only while the ranks are idle, and with the state of the last completed step."""

import math
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo.checkpoint.on_request import SaveOnRequest, SaveRequest
from grpo.run.run_files import RunFiles
from tests.supervised import wait_until

SAVE_STEPS = 3


class Trainer:
    """A controller that notes what it saves.

    Attributes:
        write: what a save does besides.
    """

    def __init__(self, folder: Path, save_steps: float = SAVE_STEPS) -> None:
        self.saved: list[dict] = []
        self.write = lambda: None
        self.saver = SaveOnRequest(SimpleNamespace(run_dir=str(folder), save_steps=save_steps), self._save, step=0)

    def _save(self, states: dict) -> None:
        self.write()
        self.saved.append(states)

    def step(self, step: int, states: dict | None = None) -> None:
        self.saver.begin_step()
        self.end(step, states)

    def end(self, step: int, states: dict | None = None) -> None:
        self.saver.end_step(step, {"global_step": step} if states is None else states, lambda _: nullcontext())


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


@pytest.fixture
def save_request(tmp_path: Path) -> SaveRequest:
    return SaveRequest(RunFiles(tmp_path).save_request)


def wait_until_answered(request: SaveRequest) -> None:
    wait_until(lambda: not request.is_open(), "nobody saved")


def test_the_last_completed_step_is_saved_as_it_was(trainer: Trainer, save_request: SaveRequest) -> None:
    states = {"global_step": 1, "position": [1]}
    trainer.step(1, states)
    states["position"].append(2)  # the loop goes on
    save_request.ask()
    wait_until_answered(save_request)
    assert trainer.saved == [{"global_step": 1, "position": [1]}]


def test_a_step_that_is_saved_already_and_a_run_without_a_step_need_nothing(trainer: Trainer, save_request) -> None:
    save_request.ask()
    wait_until_answered(save_request)
    for step in range(1, SAVE_STEPS + 1):
        trainer.step(step)
    save_request.ask()
    wait_until_answered(save_request)
    assert trainer.saved == [{"global_step": SAVE_STEPS}] and not save_request.failure()


@pytest.mark.parametrize(("last", "save_steps", "saved"), [(4, 3, [3, 4]), (3, 3, [3]), (4, math.inf, [])])
def test_the_last_step_is_a_checkpoint_unless_none_is(tmp_path: Path, last: int, save_steps: float, saved) -> None:
    trainer = Trainer(tmp_path, save_steps)
    for step in range(1, last + 1):
        trainer.step(step)
    trainer.saver.save_last()
    assert [states["global_step"] for states in trainer.saved] == saved


def test_a_checkpoint_that_cannot_be_saved_says_why_and_may_be_asked_for_again(trainer: Trainer, save_request) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    trainer.step(1)
    whole, trainer.write = trainer.write, fail
    save_request.ask()
    wait_until_answered(save_request)
    assert save_request.failure() == "OSError: [Errno 28] No space left on device"
    trainer.write = whole
    save_request.ask()
    wait_until_answered(save_request)
    assert not save_request.failure() and trainer.saved == [{"global_step": 1}]


def test_a_request_waits_for_the_end_of_the_update(trainer: Trainer, save_request: SaveRequest) -> None:
    trainer.step(1)
    trainer.saver.begin_step()
    save_request.ask()
    later = threading.Event()
    later.wait(1.0)
    assert save_request.is_open() and not trainer.saved, "the ranks are in the middle of an update"
    trainer.end(2)
    wait_until_answered(save_request)
    assert trainer.saved == [{"global_step": 2}]


def test_the_next_update_waits_for_the_checkpoint(trainer: Trainer, save_request: SaveRequest) -> None:
    trainer.step(1)
    saving, may_end = threading.Event(), threading.Event()
    trainer.write = lambda: (saving.set(), may_end.wait(400))
    save_request.ask()
    assert saving.wait(400)
    update = threading.Thread(target=trainer.step, args=(2,))
    update.start()
    update.join(0.5)
    assert update.is_alive(), "the ranks are saving"
    may_end.set()
    update.join(400)
    assert not update.is_alive()


def test_what_must_be_waited_for_is_computed_for_checkpoints_alone(trainer: Trainer, save_request: SaveRequest) -> None:
    """With --pipeline, rewards of the next batch may be missing at the end of a step."""
    computed: list[int] = []
    for step in range(1, SAVE_STEPS + 2):
        trainer.step(
            step, {"global_step": step, "next_batch": lambda step=step: computed.append(step) or {"step": step}}
        )
    assert computed == [SAVE_STEPS]
    save_request.ask()
    wait_until_answered(save_request)
    assert computed == [SAVE_STEPS, SAVE_STEPS + 1]
    assert [saved["next_batch"] for saved in trainer.saved] == [{"step": SAVE_STEPS}, {"step": SAVE_STEPS + 1}]


def test_a_failure_needs_no_room_on_the_disk(save_request: SaveRequest, tmp_path: Path) -> None:
    save_request.ask()
    file = RunFiles(tmp_path).save_request
    before = file.stat()
    save_request.fail("OSError: No space left on device")
    after = file.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert not save_request.is_open() and save_request.failure() == "OSError: No space left on device"
