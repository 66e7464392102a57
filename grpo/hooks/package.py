"""Hooks of openrlhf/__init__.py."""

from grpo.guard import check_digest

__all__ = ["check_digest"]
