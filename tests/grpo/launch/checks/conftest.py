import pytest


@pytest.fixture(autouse=True)
def only_what_a_test_breaks(enough_of_everything: None) -> None:
    """A machine that has all a run needs."""
