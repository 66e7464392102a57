"""patches/reproductions/: bugs of stock OpenRLHF that anyone can send to it with the patches that fix them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import stock
from patches.series import ROOT

SCRIPTS = sorted((ROOT / "reproductions").glob("*.py"))
# Each script in a process of its own, forked once the libraries are imported. None has imported OpenRLHF yet.
RUNNER = """
import os, runpy, sys
import deepspeed, transformers, vllm
for script in sys.argv[1:]:
    if not os.fork():
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    print(script, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
# What stock OpenRLHF imports of flash-attn, which is not installed here. Nothing calls it.
FLASH_ATTN = {
    "__init__.py": "",
    "bert_padding.py": "index_first_axis = pad_input = rearrange = unpad_input = None\n",
    "utils/__init__.py": "",
    "utils/distributed.py": "all_gather = None\n",
}


@pytest.fixture
def stock_folder(tmp_path: Path) -> Path:
    """A folder with the installed OpenRLHF without patches, and a stand-in for flash-attn."""
    folder = tmp_path / "stock"
    folder.mkdir()
    stock.copy_pristine(folder / "openrlhf")
    for name, text in FLASH_ATTN.items():
        file = folder / "flash_attn" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.timeout(600)
def test_each_fails_on_stock_and_passes_on_the_patched_package(stock_folder: Path) -> None:
    runs = {1: _start(stock_folder), 0: _start()}
    for code, run in runs.items():
        said, errors = run.communicate(timeout=600)
        codes = {Path(script): int(number) for script, number in re.findall(r"^(/.*\.py) (\d+)$", said, re.MULTILINE)}
        assert codes == dict.fromkeys(SCRIPTS, code), errors[-3000:]
        assert "Traceback" not in errors


def _start(*before: Path) -> subprocess.Popen[str]:
    """Run all scripts with these folders first on the path."""
    path = os.pathsep.join([*map(str, before), str(ROOT.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", RUNNER, *map(str, SCRIPTS)],
        env={**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
