"""Judgements and claims among threads, after a run, and in a broken file."""

import math
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward.judgements import Judgements


@pytest.fixture
def judgements(tmp_path: Path) -> Judgements:
    return Judgements(tmp_path / "judge.sqlite")


def test_a_run_begins_with_the_judgements_of_its_earlier_part_alone(judgements, tmp_path):
    judgements.end_claim("kept", "value")
    assert judgements.find_or_claim("claimed", time.monotonic()) is None
    judgements.add_to_mean(True, 0.5)
    judgements.close()
    again = Judgements(tmp_path / "judge.sqlite")
    assert again.find_or_claim("kept", time.monotonic()) == "value"
    assert again.find_or_claim("claimed", time.monotonic()) is None
    assert math.isnan(again.mean_quality(True))


def test_file_that_is_not_a_database_is_an_error(tmp_path):
    (tmp_path / "judge.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        Judgements(tmp_path / "judge.sqlite")


def test_a_question_is_asked_once(judgements):
    claims = []

    def ask(_: int) -> str | None:
        answer = judgements.find_or_claim("key", time.monotonic() + 30)
        if answer is None:
            claims.append(threading.get_ident())
            time.sleep(0.2)
            judgements.end_claim("key", "value")
        return answer

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, range(10)))
    assert len(claims) == 1 and answers.count("value") == 9


def test_a_claim_that_was_given_up_passes_on(judgements):
    assert judgements.find_or_claim("key", 0.0) is None
    with pytest.raises(TimeoutError):
        judgements.find_or_claim("key", time.monotonic() + 0.05)
    judgements.end_claim("key", None)
    assert judgements.find_or_claim("key", 0.0) is None


def test_the_running_mean(judgements):
    assert math.isnan(judgements.mean_quality(True))
    for quality in (0.5, 0.25, 0.75, 0.0):
        judgements.add_to_mean(True, quality)
    assert judgements.mean_quality(True) == pytest.approx(0.375)
    assert math.isnan(judgements.mean_quality(False))
