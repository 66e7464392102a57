from collections.abc import Iterator

import pytest

from tests.grpo.diagnosis.synthetic_ills import ILLS, LEAST
from tests.grpo.diagnosis.synthetic_runs import SyntheticRun, make_run

SEED = 2_000_000  # the benchmark and the rules' development use other seeds


@pytest.fixture
def make_sick_runs():
    """Make runs of one pathology at the strength that is obvious."""

    def make_runs(name: str, count: int, strength: float = 1.0) -> Iterator[SyntheticRun]:
        return (make_run(seed, (name, ILLS[name]), strength, LEAST[name]) for seed in range(SEED, SEED + count))

    return make_runs


@pytest.fixture
def make_healthy_runs():
    """Make healthy runs."""
    return lambda count, least=20: (make_run(seed, least=least) for seed in range(SEED, SEED + count))
