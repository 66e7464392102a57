"""Every fault in the table of docs/reliability.md is injected by a test, which compares what the user sees with it."""

from pathlib import Path

import pytest

from tests import faults

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", faults.read_table())
def test_a_fault_of_the_table_is_injected(fault: str) -> None:
    assert faults.read_table()[fault], "the table must say what the user sees"
    tests = [file for file in (ROOT / "tests").rglob("test_*.py") if f'assert_seen("{fault}"' in file.read_text()]
    assert tests


def test_a_row_that_was_not_seen_is_noticed() -> None:
    fault = "a process of Ray is killed"
    with pytest.raises(AssertionError, match="not seen"):
        faults.assert_seen(fault, "failed       Ray ended with exit code 1 (pid 7)")
    faults.assert_seen(fault, "last lines of /ray-start.log\nfailed       Ray was killed by SIGKILL (pid 7)")
