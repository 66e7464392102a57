"""Cache, claims and means among threads and real processes, and after a run, a boot or a broken file."""

import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward import shared_state
from reward.limits import Limits, NoSlot, Slot
from reward.shared_state import Judgements, SharedState

from .chains import chain_settings

ROOT = Path(__file__).parents[2]
MODEL = "model"


def take(state: SharedState) -> Slot | NoSlot:
    """The only request of a window, where none was sent in it."""
    settings = chain_settings(MODEL, requests_per_window=1, window=10.0)
    return Limits(state, settings).take(MODEL, 1, time.monotonic())


def test_a_transaction_that_fails_changes_nothing(state):
    with pytest.raises(ZeroDivisionError), state.transaction() as connection:
        connection.execute("INSERT INTO judgements VALUES ('key', 'value')")
        raise ZeroDivisionError
    assert Judgements(state).find_or_claim("key", time.monotonic() + 1) is None


def test_a_commit_that_fails_ends_its_transaction(state):
    """A deferred constraint fails in COMMIT itself, and SQLite leaves the transaction open."""
    connection = state.connection
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE child (key TEXT REFERENCES judgements (key) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(sqlite3.IntegrityError), state.transaction() as inside:
        inside.execute("INSERT INTO child VALUES ('none')")
    assert not connection.in_transaction
    Judgements(state).store("key", "value")


def test_the_cause_is_shown_where_sqlite_rolled_back_itself(state):
    with pytest.raises(sqlite3.IntegrityError, match="the cause"), state.transaction() as connection:
        connection.execute(
            "CREATE TRIGGER t BEFORE INSERT ON judgements BEGIN SELECT RAISE(ROLLBACK, 'the cause'); END"
        )
        connection.execute("INSERT INTO judgements VALUES ('key', 'value')")
    Judgements(state).store("key", "value")


def test_file_locked_by_others_times_out(state, tmp_path, monkeypatch):
    """All at once: one after the other they would wait for longer than the test may take."""
    monkeypatch.setattr(shared_state, "BUSY_SECONDS", 3.0)
    mine = SharedState(tmp_path / "judge.sqlite")

    def find(number: int) -> None:
        with pytest.raises(sqlite3.OperationalError):
            Judgements(mine).find_or_claim(f"key {number}", time.monotonic())

    with state.transaction(), ThreadPoolExecutor(60) as pool:
        list(pool.map(find, range(60)))


def test_a_run_begins_without_limits_breakers_claims_and_means(state, tmp_path):
    judgements = Judgements(state)
    assert isinstance(take(state), Slot)
    judgements.store("kept", "value")
    judgements.find_or_claim("claimed", time.monotonic() + 60)
    judgements.add_to_mean(True, 0.5)
    assert isinstance(take(state), NoSlot)
    SharedState(tmp_path / "judge.sqlite", begins_run=True).close()
    assert isinstance(take(state), Slot)
    assert judgements.find_or_claim("kept", time.monotonic()) == "value"
    assert judgements.find_or_claim("claimed", time.monotonic()) is None
    assert math.isnan(judgements.mean_quality(True))


def test_file_that_is_not_a_database_is_an_error(tmp_path):
    (tmp_path / "judge.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        SharedState(tmp_path / "judge.sqlite")


def test_state_of_another_machine_is_rejected_and_kept(tmp_path, monkeypatch):
    """Its clock is another one; the times in the file would mean nothing to it."""
    state = SharedState(tmp_path / "judge.sqlite")
    assert isinstance(take(state), Slot)
    own = shared_state.BOOT_ID
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(shared_state, "BOOT_ID", tmp_path / "boot")
    with pytest.raises(sqlite3.OperationalError, match=r"another machine.*one node"):
        SharedState(tmp_path / "judge.sqlite")
    monkeypatch.setattr(shared_state, "BOOT_ID", own)
    assert isinstance(take(SharedState(tmp_path / "judge.sqlite")), NoSlot)


def test_a_run_goes_on_after_a_restart_of_the_machine(tmp_path, monkeypatch):
    state = SharedState(tmp_path / "judge.sqlite")
    assert isinstance(take(state), Slot)
    Judgements(state).store("key", "value")
    state.close()
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(shared_state, "BOOT_ID", tmp_path / "boot")
    SharedState(tmp_path / "judge.sqlite", begins_run=True).close()
    again = SharedState(tmp_path / "judge.sqlite")
    assert isinstance(take(again), Slot)
    assert Judgements(again).find_or_claim("key", time.monotonic()) == "value"


def test_a_question_is_asked_once(state):
    judgements, claims = Judgements(state), []

    def ask(_: int) -> str | None:
        answer = judgements.find_or_claim("key", time.monotonic() + 30)
        if answer is None:
            claims.append(threading.get_ident())
            time.sleep(0.2)
            judgements.store("key", "value")
        return answer

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, range(10)))
    assert len(claims) == 1 and answers.count("value") == 9


def test_a_claim_that_was_given_up_or_whose_process_died_passes_on(state, tmp_path):
    judgements = Judgements(state)
    deadline = time.monotonic() + 60
    assert judgements.find_or_claim("key", deadline) is None
    judgements.release("key")
    child = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys, time; from pathlib import Path; from reward.shared_state import *;"
            "print(Judgements(SharedState(Path(sys.argv[1]))).find_or_claim('key', time.monotonic() + 60))",
            str(tmp_path / "judge.sqlite"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == "None\n"
    assert judgements.find_or_claim("key", deadline) is None, "it died with the claim"
    with pytest.raises(TimeoutError):
        judgements.find_or_claim("key", time.monotonic() + 0.2)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_running_mean(qualities):
    state = SharedState(Path(":memory:"))
    judgements = Judgements(state)
    assert math.isnan(judgements.mean_quality(True))
    for quality in qualities:
        judgements.add_to_mean(True, quality)
    assert judgements.mean_quality(True) == pytest.approx(sum(qualities) / len(qualities))
    assert math.isnan(judgements.mean_quality(False))
    state.close()


def test_state_is_readable_json_without_secrets(state, tmp_path):
    """The file contains only numbers, names of models, and digests."""
    Judgements(state).store("key", json.dumps({"validity": 4}))
    names = {name for (name,) in state.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"boot", "calls", "models", "judgements", "flights", "means"}
    assert os.path.exists(tmp_path / "judge.sqlite")
