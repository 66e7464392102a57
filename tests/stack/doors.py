"""A run to attack, and attackers. It has an engine with TP=2 and two ranks; with --recipe-shape, those of the recipe.

The attackers are a host in a separate network namespace, and another user of this machine.
"""

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

from .runs import ROOT, make_words, read_lines

NOBODY = 65534
PLANTED = "a-planted-key-that-must-not-leak"

# Lists the ports that accept a stranger's connection. Plain sockets are all that the outsider's host has.
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
# While the file `hold` exists, no sample gets its reward: the run waits and leaves the CPU to the attackers.
REWARD = """
import time
from pathlib import Path
from reward import reward_func as own

def reward_func(queries, prompts, labels):
    while Path(__file__).with_name("hold").exists():
        time.sleep(0.2)
    return own.reward_func(queries, prompts, labels)
"""
# Engines, TP, and actor ranks: the recipe's need more memory. Their kinds are the same.
SHAPE, RECIPE = (1, 2, 2), (2, 2, 4)
STEPS = 2  # until it is held
PROMPTS = 8  # of a step


@dataclass
class Run:
    """A run that is going, with problems also in the form of AIME, and many options."""

    folder: Path
    launcher: subprocess.Popen[str]
    checkpoints: Path
    sockets: list[tuple[str, int, str]] = field(default_factory=list)

    def list_processes(self) -> dict[int, str]:
        """Ids and command lines. By descent: Ray's agents write their titles over their environments."""
        children = psutil.Process(self.launcher.pid).children(True)
        live = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return {child.pid: " ".join(child.cmdline()) for child in live}

    def read_driver(self) -> dict[str, str]:
        """The environment of the driver, which has everything that a member of the run needs."""
        [pid] = [pid for pid, line in self.list_processes().items() if "train_ppo_ray" in line]
        return psutil.Process(pid).environ()

    @property
    def ports(self) -> list[int]:
        return sorted({port for _, port, _ in self.sockets})

    @property
    def gcs(self) -> int:
        [port] = [port for _, port, name in self.sockets if name == "gcs_server"]
        return port

    @property
    def agents(self) -> list[int]:
        """The ports of Ray's agents, which speak HTTP, from the files in which they tell Ray. Titles may be cut off."""
        base = Path(self.read_driver()["TMPDIR"]).parent
        return sorted({int(file.read_text()) for file in base.rglob("*_agent_*port_*") if file.is_file()})

    def read_evaluations(self) -> list[dict]:
        """The results so far."""
        return read_lines(file) if (file := self.folder / "eval.jsonl").exists() else []

    def end(self) -> None:
        """End the run as Ctrl-C does, and wait for it."""
        if self.launcher.poll() is None:
            (self.folder.parent / "hold").unlink(missing_ok=True)
            os.kill(self.launcher.pid, signal.SIGINT)
            self.launcher.communicate(timeout=300)


@contextlib.contextmanager
def hold_run(folder: Path, adapter: Path, shape: Sequence[int]) -> Iterator[Run]:
    """Start a run in `folder`, with its checkpoints next to it, and yield it when it is held after STEPS steps.

    The first limit of 28 leaves 6 of 8 tokens for the thinking, after 6 for the delimiter and 16 for the answer.

    Args:
        adapter: what the policy starts from.
        shape: SHAPE or RECIPE.
    """
    folder.chmod(0o755)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(mode=0o755)
    (folder / "reward.py").write_text(REWARD)
    write_aime(folder / "aime.jsonl")
    sources = ["--source", folder / "aime.jsonl", "--source", "synthetic", "--train-count", "72", "--eval-count", "6"]
    subprocess.run([sys.executable, "-m", "data.prepare", *sources, "--out", folder / "data"], cwd=ROOT, check=True)
    flags = {
        "vllm_num_engines": str(shape[0]), "vllm_tensor_parallel_size": str(shape[1]),
        "actor_num_gpus_per_node": str(shape[2]),
        "prompt_data": str(folder / "data" / "train.jsonl"), "eval_dataset": str(folder / "data" / "eval.jsonl"),
        "prompt_max_len": "512", "rollout_batch_size": str(PROMPTS), "n_samples_per_prompt": "8",
        "train_batch_size": "32", "micro_train_batch_size": "8", "micro_rollout_batch_size": "8", "num_episodes": "5",
        "thinking_budget": "8", "answer_budget": "16", "generate_max_len": "30", "length_schedule": "28,30@2",
        "init_kl_coef": "0.001", "policy_loss_type": "cispo", "loss_aggregation": "constant",
        "overlong_buffer_len": "24",
        "routing_replay": True, "log_samples": "8", "adapter": str(adapter),
        "dynamic_filtering": True, "dynamic_filtering_batches": "1",
        "remote_rm_url": str(folder / "reward.py"), "judge": False,
        "ckpt_path": str(checkpoints), "save_steps": "1", "eval_at_start": False, "eval_steps": str(STEPS),
    }  # fmt: skip
    words = ["--steps", "50", "--run-dir", folder / "run", "--use_kl_loss", "--kl_estimator", "k3", *make_words(flags)]
    launcher = subprocess.Popen(
        [ROOT / "train_grpo.sh", "--tiny", *words],
        env={**os.environ, "WANDB_API_KEY": PLANTED},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    run = Run(folder / "run", launcher, checkpoints)
    try:
        deadline = time.monotonic() + 900
        while not run.read_evaluations():
            assert launcher.poll() is None, launcher.communicate()[0]
            assert time.monotonic() < deadline, "the run was not evaluated in time"
            time.sleep(0.5)
        (folder / "hold").touch()
        run.sockets = list_listeners(list(run.list_processes()), run.agents)
        yield run
    finally:
        run.end()


def write_aime(path: Path) -> None:
    """Problems of our own in the form of an AIME file."""
    rows = [
        {
            "problem": f"Let $n = {7 * number} + {year - 2000} + {200 * contest}$. "
            "Find the remainder when $n$ is divided by $1000$.",
            "answer": f"{(7 * number + year - 2000 + 200 * contest) % 1000:03d}",
            "year": year,
            "contest": contest,
            "number": number,
        }
        for year in (2022, 2023, 2024)
        for contest in (1, 2)
        for number in range(1, 16)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))


def list_listeners(pids: Sequence[int], ports: Sequence[int]) -> list[tuple[str, int, str]]:
    """Address, port and process of each TCP socket that listens in one of these processes or on one of these ports."""
    sockets = []
    for connection in psutil.net_connections("tcp"):
        ours = connection.pid in pids or connection.laddr.port in ports
        if connection.status == psutil.CONN_LISTEN and ours:
            name = psutil.Process(connection.pid).name() if connection.pid else "unknown"
            sockets.append((connection.laddr.ip, connection.laddr.port, name))
    return sockets


@contextlib.contextmanager
def outsider() -> Iterator[tuple[list[str], str]]:
    """Make a separate host, connected by a virtual wire. Yield the prefix of its commands, and our address."""
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


def run_as_nobody(command: Sequence[str], seconds: float = 120) -> subprocess.CompletedProcess[str]:
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
    """Try to join a Ray cluster with `ray.init`, with only `variables` of our variables."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "GRPO_"))}
    command = [*prefix, sys.executable, "-c", JOIN, address]
    environment = {**plain, "HOME": "/nonexistent", **variables}
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:  # counts as a refusal
        return subprocess.CompletedProcess(command, 1, "", "timed out")


def call_at_once(calls: Sequence) -> list:
    """Make the calls concurrently and return their results."""
    with ThreadPoolExecutor(16) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def can_be_somebody_else() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "curl")))
