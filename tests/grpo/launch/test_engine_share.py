"""An engine that shares its GPU gets what the actor leaves, unless a flag says how much."""

from grpo.launch import engine_share

from .boxes import LARGE, SMALL

FLAG = "vllm_gpu_memory_utilization"


def share(config) -> float | None:
    return engine_share.choose(config).given.get(FLAG)


def test_a_longer_sequence_or_a_smaller_gpu_leaves_less(box):
    shares = [share(box("1", length, model=SMALL, gpu_gb=gb)) for gb in (80, 48) for length in (4096, 32_768)]
    assert shares == sorted(shares, reverse=True) and len(set(shares)) == 4
    assert all(0 < one < 1 for one in shares)


def test_an_actor_that_leaves_nothing_gets_a_share_that_vllm_accepts(box):
    """The launcher refuses such a run with the sizes, not for the share."""
    assert share(box("1", model=LARGE, gpu_gb=40)) == 0.001


def test_given_shares_and_engines_with_their_own_gpus_stay(box):
    assert share(box("1", model=SMALL, **{FLAG: 0.4})) == 0.4
    for gpus in ("8", "2"):
        config = box(gpus)
        assert engine_share.choose(config) is config
