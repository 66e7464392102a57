"""The files of docs/cluster: what starts a cluster is valid, does what the page says, and holds no secret."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.settings.recipe import default
from tests.docs.pages import ROOT, get_page
from tests.docs.test_project_files import read_locked_version

FOLDER = ROOT / "docs" / "cluster"
CHECKOUT = "/shared/gptoss-grpo"
# A stand-in for a command: it notes its words, and then does what FAKE_name says.
FAKE = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0") $*" >>"$FAKE_LOG"
what="FAKE_$(basename "$0" .sh)"
eval "${!what:-}"
"""
# Fields of KubeRay's RayCluster and of Kubernetes' pods that the file uses, from the reference of their APIs:
# https://ray-project.github.io/kuberay/reference/api/ and https://kubernetes.io/docs/reference/kubernetes-api/
CONTAINER = {"name", "image", "workingDir", "command", "env", "envFrom", "resources", "volumeMounts", "lifecycle"}
FIELDS = {
    "spec": {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    | {"initContainers", "containers", "volumes", "terminationGracePeriodSeconds"},
    "authOptions": {"mode"},
    "headGroupSpec": {"rayStartParams", "template"},
    "workerGroupSpecs": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
    "template": {"spec"},
    "containers": CONTAINER,
    "initContainers": CONTAINER,
}


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    """An environment whose ray, srun, openssl and python only note their calls; `checkout` has a launcher like them."""
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    (checkout / "scripts").mkdir(parents=True)
    programs.mkdir()
    (checkout / "scripts" / "env.sh").touch()
    for file in (
        checkout / "train_grpo.sh",
        *(programs / name for name in ("ray", "srun", "python", "hostname", "openssl")),
    ):
        file.write_text(FAKE)
        file.chmod(0o755)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FAKE_LOG": str(tmp_path / "calls"),
        "FAKE_hostname": 'if [[ ${1:-} == --all-ip-addresses ]]; then echo "10.0.0.7 fe80::1"; fi',
        "SLURMD_NODENAME": "node-a",
        "SLURM_SUBMIT_DIR": str(checkout),
        "SLURM_JOB_NUM_NODES": "3",
    }


def read_calls(environment: dict[str, str]) -> list[str]:
    return Path(environment["FAKE_LOG"]).read_text().splitlines()


def start_slurm(environment: dict[str, str], *options: str) -> "subprocess.Popen[str]":
    words = ["bash", str(FOLDER / "slurm.sh"), *options]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


TOKEN = "feedfacefeedface"


def test_the_job_starts_ray_on_every_node_and_the_launcher_on_the_first(stand_ins) -> None:
    launcher = 'until grep -q ^srun "$FAKE_LOG"; do sleep 0.05; done; '
    launcher += 'printf "%s\\n" "$RAY_ADDRESS $RAY_AUTH_MODE $RAY_AUTH_TOKEN" >"$FAKE_LOG.launcher"; exit 3'
    environment = stand_ins | {"FAKE_python": "echo 3", "FAKE_openssl": f"echo {TOKEN}", "FAKE_train_grpo": launcher}
    environment |= {"GEMINI_API_KEY": "planted", "SEARCH_API_KEY": "of-a-reward"}
    environment["FAKE_srun"] = 'printf "%s %s\n" "${GEMINI_API_KEY-none}" "$SEARCH_API_KEY" >"$FAKE_LOG.keys"'
    job = start_slurm(environment, "--steps", "20")
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 3, f"the launcher's exit code is that of the job: {output}"
    noted = read_calls(environment)
    assert [call for call in noted if call.startswith("ray start --head --node-ip-address=10.0.0.7 --port=6379")]
    (others,) = [call for call in noted if call.startswith("srun")]
    assert "--nodes=2 --ntasks=2 --exclude=node-a ray start --address=10.0.0.7:6379" in others
    assert others.endswith("--block") and "train_grpo.sh --steps 20" in noted
    assert Path(f"{environment['FAKE_LOG']}.launcher").read_text().split() == ["10.0.0.7:6379", "token", TOKEN]
    assert not [call for call in noted if TOKEN in call], "everybody can read command lines"
    keys = Path(f"{environment['FAKE_LOG']}.keys").read_text()
    assert keys == "none of-a-reward\n", "the judge's key left the launcher's node, or one that may did not"


def test_the_job_keeps_a_given_token_and_needs_no_other_nodes(stand_ins) -> None:
    environment = stand_ins | {"FAKE_python": "echo 1", "SLURM_JOB_NUM_NODES": "1", "RAY_AUTH_TOKEN": TOKEN}
    environment["FAKE_train_grpo"] = f"[[ $RAY_AUTH_TOKEN == {TOKEN} ]]"
    job = start_slurm(environment)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 0, output
    assert not [call for call in read_calls(environment) if "srun" in call or "openssl" in call]


def test_slurms_signal_reaches_the_launcher_and_the_job_waits_for_it(stand_ins, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    launcher = f'trap "sleep 1; touch {saved}; exit 143" TERM; touch {tmp_path}/up; while :; do sleep 0.1; done'
    environment = stand_ins | {"FAKE_python": "echo 3", "FAKE_openssl": f"echo {TOKEN}", "FAKE_train_grpo": launcher}
    job = start_slurm(environment)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "up").exists():
            assert time.monotonic() < until and job.poll() is None
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 143, output
    assert saved.exists(), "the job ended before the run had saved"


def test_the_cluster_of_kuberay_has_known_fields() -> None:
    def check(name: str, node: Any) -> None:
        for part in node if isinstance(node, list) else [node]:
            if name in FIELDS:
                assert set(part) <= FIELDS[name], name
                for key, value in part.items():
                    check(key, value)

    cluster = load("kuberay.yaml")
    assert (cluster["apiVersion"], cluster["kind"], len(cluster)) == ("ray.io/v1", "RayCluster", 4)
    check("spec", cluster["spec"])
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"] + pod.get("initContainers", []):
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_cluster_of_kuberay_fits_this_project() -> None:
    spec = load("kuberay.yaml")["spec"]
    (workers,) = spec["workerGroupSpecs"]
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["rayVersion"] == read_locked_version("ray")
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"], "a run does not grow"
    keys = {}
    for name, group in (("head", spec["headGroupSpec"]), ("workers", workers)):
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"].startswith(f"rayproject/ray:{read_locked_version('ray')}-py312")
        assert container["command"] == ["source", "scripts/env.sh"] and container["workingDir"] == CHECKOUT
        assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        keys[name] = [source["secretRef"]["name"] for source in container.get("envFrom", [])]
    assert keys == {"head": ["grpo-keys"], "workers": []}, "the judge's key stays on the head"


def test_a_job_that_is_stopped_has_time_to_save() -> None:
    needed = int(default("SIGTERM_SECONDS")) + 10
    (seconds,) = re.findall(r"--signal=B:TERM@(\d+)", (FOLDER / "slurm.sh").read_text())
    assert int(seconds) > needed


@pytest.mark.parametrize("file", sorted(FOLDER.iterdir()), ids=lambda file: file.name)
def test_no_file_has_a_secret_and_the_page_links_to_each(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    given = re.findall(r"^[^#\n]*?\b\w*(?:TOKEN|KEY|SECRET|PASSWORD)\w*[=:] *[\"']?(\w{6,})", text, re.MULTILINE)
    assert given == [] and not re.search(r"[0-9a-f]{32}", text)
    assert f"cluster/{file.name}" in get_page("docs/cluster.md").links
    assert f"docs/cluster/{file.name}" in text.partition("set -")[0], "its first lines say how it is called"
    if file.suffix == ".sh":
        assert os.access(file, os.X_OK)
        subprocess.run(["bash", "-n", file], check=True, timeout=30)
        subprocess.run(["shellcheck", "--external-sources", file], check=True, cwd=ROOT, timeout=60)
