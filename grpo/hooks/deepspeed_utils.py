"""Hooks of openrlhf/utils/deepspeed/deepspeed_utils.py: the optimizer's parameter groups."""

from typing import Any


def with_parameters(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the optimizer's groups without empty ones, which torch refuses."""
    return [group for group in groups if group["params"]]
