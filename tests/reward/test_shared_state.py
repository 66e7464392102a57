"""Limits, breakers, cache and claims among threads and real processes, some of which are killed."""

import json
import math
import multiprocessing
import os
import signal
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

from reward import limits, shared_state
from reward.limits import Limits, NoPlace, Outcome, Place
from reward.settings import ChainSettings
from reward.shared_state import Judgements, SharedState

ROOT = Path(__file__).parents[2]
MODEL = "model"


@pytest.fixture
def state(tmp_path):
    return SharedState(tmp_path / "judge.sqlite")


def make(state: SharedState, **settings: object) -> Limits:
    values = {"models": (MODEL, "other"), "window": 10.0, "call_timeout": 5.0} | settings
    return Limits(state, ChainSettings(**values))  # type: ignore[arg-type]


def now_or_not(gate: Limits, tokens: int = 1, model: str = MODEL) -> Place | NoPlace:
    return gate.take(model, tokens, time.monotonic())


def take(gate: Limits, tokens: int = 1, model: str = MODEL) -> Place:
    place = now_or_not(gate, tokens, model)
    assert isinstance(place, Place), place
    return place


def test_requests_of_a_window(state):
    gate = make(state, requests_per_window=3)
    for _ in range(3):
        gate.give_back(take(gate), Outcome.ANSWERED)
    refusal = now_or_not(gate)
    assert isinstance(refusal, NoPlace) and "requests" in refusal.why
    assert 9 < refusal.until - time.monotonic() < 11
    take(gate, model="other")


def test_tokens_of_a_window_as_the_server_counted_them(state):
    gate = make(state, tokens_per_window=100)
    gate.give_back(take(gate, 90), Outcome.ANSWERED, tokens=20)
    gate.give_back(take(gate, 70), Outcome.ANSWERED, tokens=70)
    refusal = now_or_not(gate, 11)
    assert isinstance(refusal, NoPlace) and "tokens" in refusal.why
    take(gate, 10)


def test_a_prompt_above_the_limit_is_sent_alone(state):
    gate = make(state, tokens_per_window=100)
    take(gate, 1000)
    assert isinstance(now_or_not(gate), NoPlace)


def test_a_window_moves_on(state):
    gate = make(state, requests_per_window=2, window=0.3)
    started = time.monotonic()
    for _ in range(6):
        place = gate.take(MODEL, 1, started + 30)
        assert isinstance(place, Place)
        gate.mark_sent(place)
        gate.give_back(place, Outcome.ANSWERED)
    assert time.monotonic() - started >= 2 * 0.3


def test_calls_at_once_and_a_process_that_died(state, tmp_path):
    gate = make(state, concurrency=2, call_timeout=0.2)
    child = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys, time; from pathlib import Path; from reward.limits import Limits;"
            "from reward.settings import ChainSettings; from reward.shared_state import SharedState;"
            "gate = Limits(SharedState(Path(sys.argv[1])), ChainSettings(('model', 'other'), concurrency=2,"
            "    call_timeout=0.2, window=10.0));"
            "[gate.take('model', 1, 0) for _ in range(2)]; print('held', flush=True); time.sleep(60)",
            str(tmp_path / "judge.sqlite"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert child.stdout and child.stdout.readline() == b"held\n"
    refusal = now_or_not(gate)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert isinstance(refusal, NoPlace) and "under way" in refusal.why
    assert isinstance(gate.take(MODEL, 1, time.monotonic() + 30), Place), "its places are free after its calls' time"


def test_the_cap_is_what_was_accepted_and_grows_again(state, monkeypatch):
    gate = make(state, requests_per_window=20, window=0.5)
    places = [take(gate) for _ in range(10)]
    for place in places:
        gate.mark_sent(place)
    for place in places[:6]:
        gate.give_back(place, Outcome.ANSWERED)
    for place in places[6:]:
        gate.give_back(place, Outcome.THROTTLED, retry_after=0.0)

    def cap():
        with state.transaction() as connection:
            return connection.execute("SELECT cap FROM models WHERE model = ?", (MODEL,)).fetchone()["cap"]

    assert cap() == 6
    time.sleep(limits.WINDOWS_TO_GROW * 0.5 + 0.1)
    gate.give_back(take(gate), Outcome.ANSWERED)
    assert cap() == 7
    time.sleep(limits.WINDOWS_TO_GROW * 0.5 + 0.1)
    gate.give_back(take(gate), Outcome.ANSWERED)
    assert cap() == 9


def test_a_429_at_the_first_call_is_no_measure_of_the_quota(state):
    gate = make(state, requests_per_window=20)
    places = [take(gate) for _ in range(2)]
    for place in places:
        gate.give_back(place, Outcome.THROTTLED, retry_after=0.0)
    time.sleep(limits.SLACK * 10)
    assert [isinstance(now_or_not(gate), Place) for _ in range(6)] == [True] * 5 + [False], "a quarter of 20"


def test_a_pause_is_for_the_model_and_all_threads(state):
    gate = make(state)
    gate.give_back(take(gate), Outcome.THROTTLED, retry_after=3.0)
    refusal = now_or_not(gate)
    assert isinstance(refusal, NoPlace) and not refusal.is_open and 2.9 < refusal.until - time.monotonic() < 4
    take(gate, model="other")


def test_the_breaker_lets_exactly_one_probe_through(state):
    gate = make(state, window=1.2)  # opens for a twelfth of it, then for twice as long
    for _ in range(limits.FAILURES_TO_OPEN):
        gate.give_back(take(gate), Outcome.FAILED)
    refusal = now_or_not(gate)
    assert isinstance(refusal, NoPlace) and refusal.is_open
    time.sleep(0.15)
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: now_or_not(gate), range(20)))
    [probe] = [place for place in found if isinstance(place, Place)]
    assert probe.is_probe
    gate.give_back(probe, Outcome.FAILED)
    refusal = now_or_not(gate)
    assert isinstance(refusal, NoPlace) and 0.1 < refusal.until - time.monotonic() <= 0.2
    time.sleep(0.25)
    gate.give_back(take(gate), Outcome.ANSWERED)
    assert not take(gate).is_probe


def test_a_quota_that_is_spent_opens_the_breaker(state):
    gate = make(state, window=1.2)
    places = [take(gate) for _ in range(3)]
    gate.give_back(places[0], Outcome.ANSWERED)
    for place in places[1:]:
        gate.give_back(place, Outcome.SPENT)
    refusal = now_or_not(gate)
    assert isinstance(refusal, NoPlace) and refusal.is_open and refusal.until - time.monotonic() <= 0.1
    time.sleep(0.15)
    gate.give_back(take(gate), Outcome.SPENT, retry_after=5.0)
    refusal = now_or_not(gate)
    assert isinstance(refusal, NoPlace) and refusal.is_open and 4 < refusal.until - time.monotonic() <= 5


def test_only_429s_for_a_whole_window_open_the_breaker(state):
    gate = make(state, window=0.5)
    started = time.monotonic()
    while not (isinstance(found := gate.take(MODEL, 1, started + 30), NoPlace) and found.is_open):
        assert isinstance(found, Place)
        gate.give_back(found, Outcome.THROTTLED, retry_after=0.01)
    assert time.monotonic() - started >= 0.5
    time.sleep(max(0.0, found.until - time.monotonic()) + 0.01)
    probe = take(gate)
    assert probe.is_probe
    gate.give_back(probe, Outcome.THROTTLED, retry_after=0.01)
    refusal = now_or_not(gate)
    assert isinstance(refusal, NoPlace) and refusal.is_open, "a 429 does not close it"


def test_429s_beside_answers_open_no_breaker(state):
    gate, started = make(state, window=0.4), time.monotonic()
    while time.monotonic() < started + 1.0:
        for outcome in (Outcome.THROTTLED, Outcome.ANSWERED):
            place = gate.take(MODEL, 1, started + 30)
            assert isinstance(place, Place)
            gate.give_back(place, outcome, retry_after=0.01)


def test_a_day_of_probes_is_no_overflow(state):
    gate = make(state, window=0.01)
    gate.give_back(take(gate), Outcome.SPENT)
    with state.transaction() as connection:
        connection.execute("UPDATE models SET openings = 2000")
    time.sleep(0.01)
    gate.give_back(take(gate), Outcome.SPENT)


def test_a_call_that_was_cut_says_nothing(state):
    gate = make(state, window=1.2)
    for _ in range(2 * limits.FAILURES_TO_OPEN):
        gate.give_back(take(gate), Outcome.CUT)
    for _ in range(limits.FAILURES_TO_OPEN):
        gate.give_back(take(gate), Outcome.FAILED)
    time.sleep(0.15)
    gate.give_back(take(gate), Outcome.CUT)
    assert take(gate).is_probe, "the next probe follows at once"


def test_a_probe_that_died_is_replaced(state):
    gate = make(state, window=1.2, call_timeout=0.1)
    for _ in range(limits.FAILURES_TO_OPEN):
        gate.give_back(take(gate), Outcome.FAILED)
    time.sleep(0.15)
    assert take(gate).is_probe
    assert isinstance(now_or_not(gate), NoPlace)
    time.sleep(0.7)
    assert take(gate).is_probe


def test_failures_that_were_on_their_way_do_not_prolong(state):
    gate = make(state)
    places = [take(gate) for _ in range(20)]
    for place in places:
        gate.give_back(place, Outcome.FAILED)
    refusal = now_or_not(gate)
    assert isinstance(refusal, NoPlace) and refusal.until - time.monotonic() < 10 / 12


def hammer(path: str, count: int, results) -> None:
    gate = Limits(SharedState(Path(path)), ChainSettings((MODEL,), requests_per_window=7, window=60.0))
    taken = sum(isinstance(gate.take(MODEL, 1, 0.0), Place) for _ in range(count))
    results.put(taken)


def test_processes_share_one_limit(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=hammer, args=(str(tmp_path / "judge.sqlite"), 10, results)) for _ in range(3)]
    for child in children:
        child.start()
    taken = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert sum(taken) == 7


def test_a_transaction_that_fails_changes_nothing(state):
    with pytest.raises(ZeroDivisionError), state.transaction() as connection:
        connection.execute("INSERT INTO judgements VALUES ('key', 'value')")
        raise ZeroDivisionError
    assert Judgements(state).find_or_claim("key", time.monotonic() + 1) is None


def test_a_commit_that_fails_ends_its_transaction(state):
    """A deferred constraint fails in COMMIT itself, and SQLite leaves the transaction open."""
    connection = state._connection
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


def test_a_file_that_others_hold_is_given_up(state, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_state, "BUSY_SECONDS", 0.3)
    mine, started = SharedState(tmp_path / "judge.sqlite"), time.monotonic()

    def find(number: int) -> None:
        with pytest.raises(sqlite3.OperationalError):
            Judgements(mine).find_or_claim(f"key {number}", time.monotonic())

    with state.transaction(), ThreadPoolExecutor(8) as pool:
        list(pool.map(find, range(8)))
    assert time.monotonic() - started < 8 * 0.3, "the threads do not wait one after the other"


def test_a_run_begins_without_limits_breakers_claims_and_means(state, tmp_path):
    gate, judgements = make(state, requests_per_window=1), Judgements(state)
    gate.give_back(take(gate), Outcome.REFUSED)
    judgements.store("kept", "value")
    judgements.find_or_claim("claimed", time.monotonic() + 60)
    judgements.add_to_mean(True, 0.5)
    SharedState(tmp_path / "judge.sqlite", begins_run=True).close()
    take(gate)
    assert judgements.find_or_claim("kept", time.monotonic()) == "value"
    assert judgements.find_or_claim("claimed", time.monotonic()) is None
    assert math.isnan(judgements.mean_quality(True))


def test_a_file_that_is_no_database_is_an_error(tmp_path):
    (tmp_path / "judge.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        SharedState(tmp_path / "judge.sqlite")


def test_another_machine_is_refused_and_clears_nothing(tmp_path, monkeypatch):
    """Its clock is another one; the times in the file would mean nothing to it."""
    state = SharedState(tmp_path / "judge.sqlite")
    gate = make(state, requests_per_window=1)
    take(gate)
    own = shared_state.BOOT_ID
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(shared_state, "BOOT_ID", tmp_path / "boot")
    with pytest.raises(sqlite3.OperationalError, match=r"another machine.*one node"):
        SharedState(tmp_path / "judge.sqlite")
    monkeypatch.setattr(shared_state, "BOOT_ID", own)
    assert isinstance(now_or_not(make(SharedState(tmp_path / "judge.sqlite"), requests_per_window=1)), NoPlace)


def test_a_run_goes_on_after_a_restart_of_the_machine(tmp_path, monkeypatch):
    state = SharedState(tmp_path / "judge.sqlite")
    take(make(state, requests_per_window=1))
    Judgements(state).store("key", "value")
    state.close()
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(shared_state, "BOOT_ID", tmp_path / "boot")
    SharedState(tmp_path / "judge.sqlite", begins_run=True).close()
    again = SharedState(tmp_path / "judge.sqlite")
    take(make(again, requests_per_window=1))
    assert Judgements(again).find_or_claim("key", time.monotonic()) == "value"


def test_a_question_is_asked_once(state):
    judgements, claims = Judgements(state), []

    def ask(_: int) -> str | None:
        found = judgements.find_or_claim("key", time.monotonic() + 30)
        if found is None:
            claims.append(threading.get_ident())
            time.sleep(0.2)
            judgements.store("key", "value")
        return found

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(ask, range(10)))
    assert len(claims) == 1 and found.count("value") == 9


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


def test_the_state_is_readable_json_of_nothing_secret(state, tmp_path):
    """What stands in the file: numbers, names of models, digests."""
    Judgements(state).store("key", json.dumps({"validity": 4}))
    names = {name for (name,) in state._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"boot", "calls", "models", "judgements", "flights", "means"}
    assert os.path.exists(tmp_path / "judge.sqlite")
