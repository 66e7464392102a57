import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.sync import start_ray

from . import doors
from .runs import ROOT, train

TINY_MODEL = ROOT / ".cache" / "tiny-model"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("stack")


@pytest.fixture(scope="session", autouse=True)
def allow_interrupts():
    """Let what the tests start be interrupted: a shell makes what it runs in the background ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The tiny model where ./train_grpo.sh --tiny keeps it: `mxfp4/` for the trainer, `bf16/` for CPU engines.

    Workers that need it at once wait for the one that makes it.
    """
    command = [sys.executable, "-m", "scripts.make_tiny_model", "--out", str(TINY_MODEL / "mxfp4")]
    subprocess.run([*command, "--dequantized-out", str(TINY_MODEL / "bf16")], cwd=ROOT, check=True)
    return TINY_MODEL


@pytest.fixture(scope="session")
def finished_run(tiny_model, tmp_path_factory) -> Path:
    """The run directory of six steps, two after a checkpoint, with a secret in the environment.

    ZeRO-3 partitions its adapter, as it does with the 120b.
    """
    run_dir = tmp_path_factory.mktemp("runs") / "short"
    secret = "a-secret-that-must-not-leak"
    settings = {"save_steps": "4", "eval_steps": "8", "max_ckpt_num": "2", "WANDB_API_KEY": secret}
    settings["stage3_param_persistence_threshold"] = "0"
    output = train("--run-dir", run_dir, "--steps", 6, **settings)
    assert "NO KEY: a local server answers instead of Gemini" in output
    return run_dir


@pytest.fixture(scope="session")
def attacked(finished_run, request) -> Iterator[doors.Run]:
    """The run that is held while it is attacked, with many options; the first test that needs its end ends it."""
    shape = doors.RECIPE if request.config.getoption("--recipe-shape") else doors.SHAPE
    # Not pytest's temporary folder: other users can never enter it.
    with (
        tempfile.TemporaryDirectory(prefix="doors-", dir="/tmp") as folder,
        doors.hold_run(Path(folder), finished_run / "final", shape) as run,
    ):
        yield run


@pytest.fixture(scope="module")
def ray_cluster():
    """The test's own Ray cluster, ended only through the handles of its processes."""
    temporary = tempfile.mkdtemp(prefix="ray-test-", dir="/tmp")
    with start_ray(Path(temporary), cpus=16, gpus=8):
        yield
    shutil.rmtree(temporary, ignore_errors=True)
