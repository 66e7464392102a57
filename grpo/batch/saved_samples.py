"""Samples as tensors and plain values: what a checkpoint holds of them."""

from typing import Any

from grpo.rollout.rows import Sample


def plain(sample: Sample) -> dict[str, Any]:
    """Return a sample, with its branches, as tensors and plain values."""
    values = dict(vars(sample))
    if "branches" in values:
        values["branches"] = [plain(branch) for branch in values["branches"]]
    return values


def filled(values: dict[str, Any]) -> Sample:
    """Return the sample of :func:`plain`."""
    sample = object.__new__(Sample)
    vars(sample).update(values)
    if "branches" in values:
        sample.branches = [filled(branch) for branch in values["branches"]]
    return sample
