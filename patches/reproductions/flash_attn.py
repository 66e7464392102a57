"""OpenRLHF cannot be imported without flash-attn, although only packing and ring attention call it."""

import sys

sys.modules["flash_attn"] = None  # type: ignore[assignment]  # as if it were not installed
try:
    import openrlhf.models.ring_attn_utils  # noqa: F401
except ImportError as error:
    sys.exit(f"openrlhf.models cannot be imported without flash-attn: {error}")
