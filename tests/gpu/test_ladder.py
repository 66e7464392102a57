"""The rungs of `python -m scripts.gpu_check`, as that command runs them; what cannot run here is skipped by name."""

from typing import Any

import pytest

from benchmarks import ladder, machine
from benchmarks.ladder import LADDER, Rung


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return machine.look()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", LADDER, ids=lambda step: step.name)
def test_rung(found: dict[str, Any], step: Rung) -> None:
    gpus = len(found["gpus"])
    if lacking := step.find_lack(gpus):
        pytest.skip(f"{step.name}: {lacking}")
    result = ladder.run_apart(step, gpus)
    if result.verdict == ladder.SKIPPED:
        pytest.skip(f"{step.name}: {result.line}")
    assert result.verdict == ladder.PASSED, f"{result.line}\n{result.remedy}\n{result.traceback}\n{result.log}"
