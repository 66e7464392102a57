import pytest


@pytest.fixture(autouse=True)
def use_ample_machine(ample_machine: None) -> None:
    """A machine that has all a run needs."""
