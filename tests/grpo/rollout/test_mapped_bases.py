"""An engine that was started again waits for the ranks that map the base of the one that died."""

import pytest

from grpo.rollout import mapped_bases


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """What Ray keeps, here without Ray."""
    keys: set[bytes] = set()
    kept = mapped_bases.internal_kv
    monkeypatch.setattr(kept, "_internal_kv_put", lambda key, _, namespace: keys.add(key))
    monkeypatch.setattr(kept, "_internal_kv_del", lambda key, namespace: keys.discard(key))
    monkeypatch.setattr(kept, "_internal_kv_exists", lambda key, namespace: key in keys)
    return keys


def test_an_engine_waits_until_its_own_base_is_unmapped(noted, monkeypatch):
    for engine in ("mine", "other"):
        mapped_bases.note_mapped(engine)
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            mapped_bases.note_unmapped("mine")

    monkeypatch.setattr(mapped_bases.time, "sleep", sleep)
    mapped_bases.wait_until_unmapped("mine")
    assert len(slept) == 3 and noted == {b"other"}


def test_an_engine_of_which_nothing_is_mapped_does_not_wait(noted, monkeypatch):
    mapped_bases.note_mapped("other")
    monkeypatch.setattr(mapped_bases.time, "sleep", lambda _: pytest.fail("it waits"))
    mapped_bases.wait_until_unmapped("mine")
