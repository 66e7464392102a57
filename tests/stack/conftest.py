import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("stack")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The tiny model where ./train_grpo.sh --tiny keeps it: `mxfp4/` for the trainer, `bf16/` for CPU engines."""
    directory = ROOT / ".cache" / "tiny-model"
    command = [sys.executable, "-m", "scripts.make_tiny_model", "--out", str(directory / "mxfp4")]
    subprocess.run([*command, "--dequantized-out", str(directory / "bf16")], cwd=ROOT, check=True)
    return directory


@pytest.fixture(scope="module")
def ray_cluster():
    """A Ray cluster of the test's own, ended through the handles of its processes alone."""
    import ray

    temporary = tempfile.mkdtemp(prefix="ray-test-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=16,
        num_gpus=8,
        include_dashboard=False,
        object_store_memory=300_000_000,
        _temp_dir=temporary,
        log_to_driver=True,
    )
    yield
    ray.shutdown()
    shutil.rmtree(temporary, ignore_errors=True)
