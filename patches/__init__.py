"""Version-pinned patches on the installed OpenRLHF: `python -m patches`, or `digest` from code."""

from patches.install import find_package
from patches.series import Exit, PatchError, load
from patches.tree import digest

__all__ = ["Exit", "PatchError", "digest", "find_package", "load"]
