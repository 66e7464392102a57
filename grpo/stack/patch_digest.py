"""Refuses to run on an OpenRLHF other than the one the launcher verified.

The launcher exports ``GRPO_PATCH_DIGEST``, the digest of the patched package that it verified. The `guard` patch calls
:func:`check_digest` when ``openrlhf`` is imported: in the driver and in every Ray worker, on every node. Without the
variable (OpenRLHF used by hand, a notebook) nothing is checked.
"""

import os
from pathlib import Path

import patches

DIGEST_VARIABLE = "GRPO_PATCH_DIGEST"


class PatchDigestError(RuntimeError):
    """The imported OpenRLHF differs from the one that the launcher verified."""


def check_digest(package_dir: str | Path) -> None:
    """Compare the digest of the installed package with the launcher's.

    Args:
        package_dir: the directory of the ``openrlhf`` package that is being imported.

    Raises:
        PatchDigestError: if the two differ; the message names both and the remedy.
    """
    expected = os.environ.get(DIGEST_VARIABLE)
    if not expected:
        return
    found = patches.digest(Path(package_dir))
    if found != expected:
        raise PatchDigestError(
            f"OpenRLHF in {package_dir} has patch digest {found[:12]}, but this run was started with "
            f"{expected[:12]}: the package changed under the run, or this node has another installation. "
            "Type ./apply_patches.sh status on this machine, and start the run again."
        )
