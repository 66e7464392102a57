import pytest

from scripts import architecture


def test_the_page_has_the_hooks_that_the_patches_call():
    assert architecture.PAGE.read_text(encoding="utf-8") == architecture.page(), "python -m scripts.architecture"


def test_a_hook_that_no_phase_names_is_noticed(monkeypatch):
    phases = dict(architecture.PHASES, **{"A step: sync": ("ppo_actor.sync_adapter",)})
    monkeypatch.setattr(architecture, "PHASES", phases)
    with pytest.raises(ValueError, match=r"ppo_actor\.trains_adapter"):
        architecture.table()
