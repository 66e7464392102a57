"""Lets an engine that was started again wait until the actor has let go of the memory of the one that died.

With ACTOR_SHARD=engine, a rank maps the base of its engine. If the engine dies, its GPU keeps this memory until the
rank unmaps it, and has no room for another base. Ray starts the engine again at once, even while the rank computes on
the memory. Each rank therefore notes with Ray whose base it maps.
"""

import logging
import time

from ray.experimental import internal_kv

logger = logging.getLogger("openrlhf.grpo.engine")

_NAMESPACE = b"grpo-mapped-bases"
_LOOK_SECONDS = 0.2


def note_mapped(engine: str) -> None:
    """Note that a rank maps the base of an engine, by Ray's id of the engine's actor."""
    internal_kv._internal_kv_put(engine.encode(), b"mapped", namespace=_NAMESPACE)


def note_unmapped(engine: str) -> None:
    """Note that it does not map it any more."""
    internal_kv._internal_kv_del(engine.encode(), namespace=_NAMESPACE)


def wait_until_unmapped(engine: str) -> None:
    """Return when no rank maps what the actor of an engine held before it died. The controller limits the wait."""
    if not _is_mapped(engine):
        return
    logger.warning("this engine loads when the actor has unmapped the model of the engine that died")
    while _is_mapped(engine):
        time.sleep(_LOOK_SECONDS)


def _is_mapped(engine: str) -> bool:
    return bool(internal_kv._internal_kv_exists(engine.encode(), namespace=_NAMESPACE))
