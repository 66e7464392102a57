"""Samples as tensors and plain values: what a checkpoint holds of them."""

from collections.abc import Callable
from typing import Any

from grpo.stack.upstream.experience import Sample


def plain(sample: Sample) -> dict[str, Any]:
    """Return a sample, with its branches, as tensors and plain values."""
    values = dict(vars(sample))
    if "branches" in values:
        values["branches"] = [plain(branch) for branch in values["branches"]]
    return values


def filled(make: Callable[[], Sample], values: dict[str, Any]) -> Sample:
    """Return the sample of :func:`plain`.

    Args:
        make: returns an empty sample.
    """
    sample = make()
    vars(sample).update(values)
    if "branches" in values:
        sample.branches = [filled(make, branch) for branch in values["branches"]]
    return sample
