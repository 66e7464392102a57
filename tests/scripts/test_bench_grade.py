"""The benchmark of grading, at a tiny size."""

import json
import re

import pytest

from scripts.bench import __main__ as bench
from scripts.bench import grade

TINY = ("--responses", "4", "--analysis-chars", "300", "--algebra", "2", "--repeat", "1", "--copy-megabytes", "1")


def test_both_ways_grade_the_same_responses(capsys):
    assert bench.main(["grade", "--json", *TINY]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["unit"] == "grades/s" and report["ratio"] == pytest.approx(report["ours"] / report["stock"])
    assert report["details"]["right_ours"] == 4 and 0 <= report["details"]["right_stock"] <= 4
    assert report["details"]["algebra_per_s"] > 0


def test_a_wrong_verdict_is_not_timed(monkeypatch):
    wrong = grade.grade("\\boxed{1}", "2")
    monkeypatch.setattr(grade, "grade", lambda response, gold: wrong)
    with pytest.raises(RuntimeError, match="wrongly"):
        bench.main(["grade", *TINY])


def test_half_of_the_responses_are_right():
    samples = grade.make_samples(24, 500)
    assert sum(right for _, _, right in samples) == 12
    boxes = [response.rpartition("\\boxed{")[2] for response, _, _ in samples]
    for box, (_, gold, right) in zip(boxes, samples, strict=True):
        assert (int(re.search("[0-9]+", box)[0]) == int(gold)) == right
    assert all(any(mark in box for box in boxes) for mark in ("cm", "circ", "x=", "mathbf", "m+n"))
