"""Refuses to run on an OpenRLHF other than the one the launcher verified.

The launcher exports ``GRPO_PATCH_DIGEST``, the digest of the patched package that it verified. The `guard` patch calls
:func:`check_digest` when ``openrlhf`` is imported: in the driver and in every Ray worker, on every node. Without the
variable (OpenRLHF used by hand, a notebook) nothing is checked.
"""

import os
from pathlib import Path

import patches
from grpo.stack.problem import UserError

DIGEST_VARIABLE = "GRPO_PATCH_DIGEST"


def check_digest(package_dir: str | Path) -> None:
    """Compare the digest of the installed package with the launcher's.

    Args:
        package_dir: the directory of the ``openrlhf`` package that is being imported.

    Raises:
        UserError: if the two differ.
    """
    expected = os.environ.get(DIGEST_VARIABLE)
    if not expected:
        return
    digest = patches.digest(Path(package_dir))
    if digest != expected:
        raise UserError(
            f"OpenRLHF in {package_dir} has patch digest {digest[:12]}, but this run was started with "
            f"{expected[:12]}. Either the package changed during the run, or this node has another installation",
            "run ./apply_patches.sh status on this machine, and start the run again",
        )
