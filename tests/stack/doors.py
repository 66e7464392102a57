"""A run to attack, and attackers: a host in a network namespace of its own, and another user of this machine."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .runs import ROOT

NOBODY = 65534
PLANTED = "a-planted-key-that-must-not-leak"

# Says which of the ports let a stranger connect; plain sockets, since the outsider's host has no more.
CONNECT = """
import json, socket, sys
host, *ports = sys.argv[1:]
reached = []
for port in ports:
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        reached.append(int(port))
    except OSError:
        pass
print(json.dumps(reached))
"""
JOIN = """
import ray, sys
ray.init(sys.argv[1], log_to_driver=False)
print("joined", ray.cluster_resources())
"""
# While the file `hold` is beside it no sample gets its reward: the run stays, and leaves the CPU to the attackers.
REWARD = """
import time
from pathlib import Path

def reward_func(queries, prompts, labels):
    while Path(__file__).with_name("hold").exists():
        time.sleep(0.2)
    return {"rewards": 0.5}
"""


@dataclass
class Run:
    """A run of `--tiny` that is going."""

    folder: Path
    launcher: subprocess.Popen[str]
    checkpoints: Path
    sockets: list[tuple[str, int, str]] = field(default_factory=list)

    def processes(self) -> dict[int, str]:
        """Ids and command lines. By descent: Ray's agents write their titles over their environments."""
        return {child.pid: " ".join(child.cmdline()) for child in psutil.Process(self.launcher.pid).children(True)}

    def driver(self) -> dict[str, str]:
        """The environment of the driver, which has everything that a member of the run needs."""
        [pid] = [pid for pid, line in self.processes().items() if "train_ppo_ray" in line]
        return psutil.Process(pid).environ()

    @property
    def ports(self) -> list[int]:
        return sorted({port for _, port, _ in self.sockets})

    @property
    def gcs(self) -> int:
        [port] = [port for _, port, name in self.sockets if name == "gcs_server"]
        return port

    def end(self) -> None:
        """End the run as Ctrl-C does, and wait for it."""
        if self.launcher.poll() is None:
            (self.folder.parent / "hold").unlink(missing_ok=True)
            os.kill(self.launcher.pid, signal.SIGINT)
            self.launcher.communicate(timeout=120)


@contextlib.contextmanager
def going(folder: Path) -> Iterator[Run]:
    """Start a run in `folder`, with its checkpoints beside it, and hand it over when a step and a checkpoint exist."""
    folder.chmod(0o755)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(mode=0o755)
    (folder / "reward.py").write_text(REWARD)
    variables = {"REWARD": str(folder / "reward.py"), "CKPT_DIR": str(checkpoints), "SAVE_STEPS": "1"}
    variables |= {"NUM_ENGINES": "1", "ENGINE_TP": "2"}  # also the sockets of tensor parallelism
    variables |= {"EVAL_AT_START": "0", "EVAL_STEPS": "-1", "NUM_EPISODES": "5", "WANDB_API_KEY": PLANTED}
    launcher = subprocess.Popen(
        [ROOT / "train_grpo.sh", "--tiny", "--steps", "100", "--run-dir", folder / "run"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    run = Run(folder / "run", launcher, checkpoints)
    try:
        deadline = time.monotonic() + 300
        while not any(checkpoints.glob("step_*")):
            assert launcher.poll() is None, launcher.communicate()[0]
            assert time.monotonic() < deadline, "no checkpoint was saved in time"
            time.sleep(0.5)
        (folder / "hold").touch()
        run.sockets = listening(list(run.processes()))
        yield run
    finally:
        run.end()


def listening(pids: Sequence[int]) -> list[tuple[str, int, str]]:
    """Address, port and process of each TCP socket that these processes listen on."""
    found = []
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.pid in pids:
            name = psutil.Process(connection.pid).name()
            found.append((connection.laddr.ip, connection.laddr.port, name))
    return found


@contextlib.contextmanager
def outsider() -> Iterator[tuple[list[str], str]]:
    """Make a host of its own, joined to this one by a wire; yield what runs a command there, and our address."""
    name = f"grpo-out-{os.getpid()}"
    here, there = f"gh{os.getpid() % 10**6}", f"gt{os.getpid() % 10**6}"
    subnet = f"10.231.{os.getpid() % 250}"
    commands = [
        f"ip netns add {name}",
        f"ip link add {here} type veth peer name {there}",
        f"ip link set {there} netns {name}",
        f"ip address add {subnet}.1/24 dev {here}",
        f"ip link set {here} up",
        f"ip netns exec {name} ip address add {subnet}.2/24 dev {there}",
        f"ip netns exec {name} ip link set {there} up",
        f"ip netns exec {name} ip link set lo up",
    ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
        yield ["ip", "netns", "exec", name], f"{subnet}.1"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", here], check=False, capture_output=True)


def as_nobody(command: Sequence[str], seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a system program as another user of this machine, without our variables."""
    return subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], env={"PATH": os.environ["PATH"]}, cwd="/",
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def get(url: str, seconds: float) -> list[str]:
    """The command that prints a page, and the status after it: 000 where nothing has answered in time."""
    return ["curl", "--silent", "--max-time", str(seconds), "--write-out", " %{http_code}", url]


def post_job(prefix: Sequence[str], host: str, port: int, entrypoint: str, seconds: float) -> list[str]:
    """The command that submits a job to Ray's job API, if that is what listens there."""
    content = ("--header", "Content-Type: application/json", "--data", json.dumps({"entrypoint": entrypoint}))
    return [*prefix, *get(f"http://{host}:{port}/api/job_agent/jobs/", seconds), "--request", "POST", *content]


def join(
    address: str, prefix: Sequence[str] = (), seconds: float = 90, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Try to join a Ray cluster with `ray.init`, with none of our variables but `variables`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "GRPO_"))}
    command = [*prefix, sys.executable, "-c", JOIN, address]
    environment = {**plain, "HOME": "/nonexistent", **variables}
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:  # as good as a refusal
        return subprocess.CompletedProcess(command, 1, "", "timed out")


def all_at_once(calls: Sequence) -> list:
    """What the calls return, which are made side by side."""
    with ThreadPoolExecutor(16) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def can_be_somebody_else() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "curl")))
