"""What docs/cluster has for a cluster does what its page says, and keeps the keys where they belong."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from grpo.flags.parser import get_default
from tests.docs.pages import ROOT
from tests.scripts.setup.sandbox import read_lock

FOLDER = ROOT / "docs" / "cluster"
TOKEN = "feedfacefeedface"
# A stand-in for a command: it notes its words, and then does what FAKE_name says.
FAKE = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0") $*" >>"$FAKE_LOG"
what="FAKE_$(basename "$0" .sh)"
eval "${!what:-}"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of a Slurm job of three nodes, whose ray, srun, openssl, python and launcher only note their calls."""
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    (checkout / "scripts").mkdir(parents=True)
    programs.mkdir()
    (checkout / "scripts" / "env.sh").touch()
    for file in (
        checkout / "train_grpo.sh",
        *(programs / name for name in ["ray", "srun", "openssl", "python", "hostname"]),
    ):
        file.write_text(FAKE)
        file.chmod(0o755)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FAKE_LOG": str(tmp_path / "calls"),
        "FAKE_hostname": 'if [[ ${1:-} == --all-ip-addresses ]]; then echo "10.0.0.7 fe80::1"; fi',
        "FAKE_openssl": f"echo {TOKEN}",
        "FAKE_python": "echo 3",
        "SLURMD_NODENAME": "node-a",
        "SLURM_SUBMIT_DIR": str(checkout),
        "SLURM_JOB_NUM_NODES": "3",
    }


def start(environment: dict[str, str]) -> "subprocess.Popen[str]":
    words = ["bash", str(FOLDER / "slurm.sh"), "--steps", "20"]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_job_starts_ray_on_every_node_and_the_launcher_on_the_first(environment) -> None:
    log = environment["FAKE_LOG"]
    launcher = 'until grep -q ^srun "$FAKE_LOG"; do sleep 0.05; done; '
    launcher += 'printf "%s\\n" "$RAY_ADDRESS $RAY_AUTH_MODE $RAY_AUTH_TOKEN" >"$FAKE_LOG.launcher"; exit 3'
    environment |= {"FAKE_train_grpo": launcher, "GEMINI_API_KEY": "planted", "SEARCH_API_KEY": "of-a-reward"}
    environment["FAKE_srun"] = 'printf "%s %s\\n" "${GEMINI_API_KEY-none}" "$SEARCH_API_KEY" >"$FAKE_LOG.keys"'
    job = start(environment)
    output, _ = job.communicate(timeout=400)
    assert job.returncode == 3, f"the launcher's exit code is that of the job: {output}"
    noted = Path(log).read_text().splitlines()
    assert [call for call in noted if call.startswith("ray start --head --node-ip-address=10.0.0.7 --port=6379")]
    (others,) = [call for call in noted if call.startswith("srun")]
    assert "--nodes=2 --ntasks=2 --exclude=node-a ray start --address=10.0.0.7:6379" in others
    assert others.endswith("--block") and "train_grpo.sh --steps 20" in noted
    assert Path(f"{log}.launcher").read_text().split() == ["10.0.0.7:6379", "token", TOKEN]
    assert not [call for call in noted if TOKEN in call], "everybody can read command lines"
    assert Path(f"{log}.keys").read_text() == "none of-a-reward\n", "the judge's key left the launcher's node"


def test_slurms_signal_reaches_the_launcher_and_leaves_it_time_to_save(environment, tmp_path: Path) -> None:
    launcher = (
        f'trap "sleep 1; touch {tmp_path}/saved; exit 143" TERM; touch {tmp_path}/up; while :; do sleep 0.1; done'
    )
    job = start(environment | {"FAKE_train_grpo": launcher})
    try:
        until = time.monotonic() + 400
        while not (tmp_path / "up").exists():
            assert time.monotonic() < until and job.poll() is None
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=400)
    finally:
        job.kill()
    assert job.returncode == 143 and (tmp_path / "saved").exists(), output
    (seconds,) = re.findall(r"--signal=B:TERM@(\d+)", (FOLDER / "slurm.sh").read_text())
    assert int(seconds) > int(get_default("sigterm_seconds")) + 10


def test_the_cluster_of_kuberay_runs_the_locked_ray() -> None:
    spec = yaml.safe_load((FOLDER / "kuberay.yaml").read_text(encoding="utf-8"))["spec"]
    locked = read_lock(ROOT / "requirements" / "lock-cpu.txt")["ray"]
    assert spec["authOptions"] == {"mode": "token"} and spec["rayVersion"] == locked
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        [container] = group["template"]["spec"]["containers"]
        assert container["image"].startswith(f"rayproject/ray:{locked}-py312")
        assert ("envFrom" in container) == (group is spec["headGroupSpec"]), "the judge's key stays on the head"
