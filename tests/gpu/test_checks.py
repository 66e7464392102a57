"""The checks of `python -m scripts.gpu_check`, as that command runs them; what cannot run here is skipped by name."""

from typing import Any

import pytest

from benchmarks import checks, machine
from benchmarks.checks import Check
from scripts.gpu_check import choose


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return machine.look()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("check", choose(None, quick=False), ids=lambda check: check.name)
def test_check(found: dict[str, Any], check: Check) -> None:
    gpus = len(found["gpus"])
    if lacking := check.find_lack(gpus):
        pytest.skip(f"{check.name}: {lacking}")
    result = checks.run_apart(check, gpus)
    if result.verdict == checks.SKIPPED:
        pytest.skip(f"{check.name}: {result.line}")
    assert result.verdict == checks.PASSED, f"{result.line}\n{result.remedy}\n{result.log}"
