import re

import pytest

from grpo.stack.checkout import CHECKOUT
from scripts import architecture


def test_the_page_has_the_hooks_that_the_patches_call():
    assert architecture.PAGE.read_text(encoding="utf-8") == architecture.page(), "python -m scripts.architecture"


def test_a_hook_that_no_phase_names_is_noticed(monkeypatch):
    phases = dict(architecture.PHASES, **{"A step: sync": ("ppo_actor.sync_adapter",)})
    monkeypatch.setattr(architecture, "PHASES", phases)
    with pytest.raises(ValueError, match=r"ppo_actor\.trains_adapter"):
        architecture.table()


@pytest.mark.parametrize(
    ("hook", "files"),
    [
        # through an attribute of an object whose type the module declares
        ("ppo_actor.note_tokens", ["metrics/token_recorder.py", "update/loss.py"]),
        ("ppo_trainer.lengths_after", ["batch/length_schedule.py"]),
        ("ppo_trainer.close", ["run/run_log.py"]),
        ("ppo_actor.sync_adapter", ["lora/sync.py", "metrics/token_recorder.py"]),
        ("vllm_engine.WORKER", ["lora/side_path.py"]),
        ("deepspeed.offload", ["hooks/deepspeed.py"]),  # it calls no room
    ],
)
def test_a_hook_names_the_files_that_do_its_work(hook, files):
    (row,) = [line for line in architecture.table().splitlines() if line.startswith(f"| `{hook}` |")]
    assert row.split(" | ")[3] == ", ".join(f"[{file}](../grpo/{file})" for file in files) + " |"


def test_no_hook_lacks_its_file():
    rows = [line for line in architecture.table().splitlines() if line.startswith("| `")]
    assert len(rows) == sum(map(len, architecture.PHASES.values()))
    assert [row for row in rows if "](../grpo/" not in row.split(" | ")[3]] == []


def test_the_diagram_of_a_step_names_existing_rooms():
    diagram = re.findall(r"```mermaid\n(.*?)```", architecture.PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    rooms = set(re.findall(r"\((\w+)/\)", diagram))
    assert {"rollout", "reward", "batch", "update", "metrics", "lora", "run", "checkpoint"} <= rooms
    assert [room for room in rooms if not any((CHECKOUT / parent / room).is_dir() for parent in ("", "grpo"))] == []
