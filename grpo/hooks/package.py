"""Hooks of openrlhf/__init__.py."""

from grpo.stack.patch_digest import check_digest

__all__ = ["check_digest"]
