"""The benchmarks at tiny sizes; `sync` runs in tests/stack/test_gpu_check.py."""

import json
import subprocess
import sys

import pytest

from benchmarks import __main__ as bench
from benchmarks import ranks
from benchmarks.measure import compare
from grpo.model import mxfp4
from grpo.stack.checkout import CHECKOUT
from tests import forked

TINY = ("--experts", "1", "--repeat", "1")
FIELDS = {"name", "what", "unit", "higher_is_better", "stock", "ours", "ratio", "details"}


def test_dequant_prints_one_json_object_or_a_table(capsys) -> None:
    assert bench.main(["dequant", "--json", *TINY]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == FIELDS and report["ratio"] == pytest.approx(report["ours"] / report["stock"])
    # One expert of 5760 and 2880 output features and of 90 groups of 32, in two bytes each.
    assert report["details"]["written_mb"] == pytest.approx(2 * (5760 + 2880) * 90 * 32 / 1e6)
    assert bench.main(["dequant", *TINY]) == 0
    table = capsys.readouterr().out
    assert all(word in table for word in ("stock", "ours", "ratio", "copy_gb_per_s"))


def test_a_wrong_result_is_not_timed(monkeypatch, capsys) -> None:
    right = mxfp4.unpack_weights
    monkeypatch.setattr(mxfp4, "unpack_weights", lambda *packed: right(*packed).neg_())
    assert bench.main(["dequant", *TINY]) == 1
    assert "differ" in capsys.readouterr().err


def test_save(capsys, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "start_process", forked.Program)
    assert bench.main(["save", "--json", "--layers", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 1 <= report["details"]["adapter_files_over_adapter"] < 1.02
    assert report["details"]["trainer_bytes_a_parameter"] == pytest.approx(12, rel=0.02)
    assert report["ours"] < report["stock"]


def test_step() -> None:
    """In a process of its own: it loads modules of OpenRLHF without the patches."""
    sizes = {"layers": 1, "experts": 2, "intermediate": 64, "vocabulary": 512, "tokens": 64, "repeat": 1}
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    command = [sys.executable, "-m", "benchmarks", "step", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr[-3000:]
    details = json.loads(done.stdout)["details"]
    assert details["gradient_difference"] < 0.02 and details["loss_difference"] < 0.02


@pytest.mark.parametrize("ours", [0.0, float("nan"), float("inf"), -1.0])
def test_unmeasured_values_have_no_ratio(ours: float) -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        compare("nothing", "s", 3.0, ours, {})
    assert compare("seconds", "s", 3.0, 1.5, {})["ratio"] == compare("rate", "GB/s", 1.5, 3.0, {}, True)["ratio"] == 2.0
