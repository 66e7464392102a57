"""The rungs of `python -m scripts.gpu_check`, as that command runs them; what cannot run here is skipped by name."""

from typing import Any

import pytest

from scripts.gpu_check import rung, seen
from scripts.gpu_check.ladder import LADDER
from scripts.gpu_check.rung import Rung


@pytest.fixture(scope="module")
def machine_facts() -> dict[str, Any]:
    return seen.look()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", LADDER, ids=lambda step: step.name)
def test_rung(machine_facts: dict[str, Any], step: Rung) -> None:
    gpus = len(machine_facts["gpus"])
    if lacking := step.find_lack(gpus):
        pytest.skip(f"{step.name}: {lacking}")
    result = rung.run_apart(step, gpus)
    if result.verdict == rung.SKIPPED:
        pytest.skip(f"{step.name}: {result.line}")
    assert result.verdict == rung.PASSED, f"{result.line}\n{result.remedy}\n{result.traceback}\n{result.log}"
    print(result.line)
