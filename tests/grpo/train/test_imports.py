"""What the processes of a run import: each import costs CPU seconds and memory in every one of them."""

import subprocess
import sys

import pytest


def is_imported(module: str, package: str) -> bool:
    """Whether importing a module imports a package, in a new process."""
    code = f"import sys, {module}; print({package!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    ("module", "package"),
    [("grpo.train.worker", "vllm"), ("openrlhf.trainer.ray.vllm_engine", "deepspeed")],
    ids=["a rank needs no vLLM", "an engine needs no DeepSpeed"],
)
def test_a_process_imports_only_the_library_that_it_calls(module, package):
    assert not is_imported(module, package)
