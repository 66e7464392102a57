"""Version-pinned patches on the installed OpenRLHF: `python -m patches`, or `digest` from code."""

from patches.errors import Exit, PatchError
from patches.package import digest, expected_digest

__all__ = ["Exit", "PatchError", "digest", "expected_digest"]
