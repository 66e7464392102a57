"""Two nodes on one machine: network namespaces joined by a virtual wire, each with its own processes and memory.

A node has its own addresses, host name, process ids, /dev/shm and folder for temporary files. They share the checkout,
as the docs ask for, and nothing else.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from grpo.launch.supervise import processes

from .runs import ROOT, make_words, select_variables

TOKEN = "0123456789abcdef" * 4
PORT = 6379
START_LIMIT = 400.0
# Ray itself gives a node 30 seconds.
RAY = f"""import sys; sys.path.append({str(ROOT)!r})
from grpo.launch.supervise import ray_head; ray_head.ease_start()
from ray.scripts.scripts import main; main()"""
OBJECT_STORE = 512 * 2**20  # what a tiny run asks for; only used pages take memory
# What a node does first: of the machine's /tmp and /dev/shm it sees a folder at most, and the checkout. No server for
# names can be reached from it, and asking one takes 10 s each time.
INIT = """
hostname {name}
mount -t tmpfs -o size=2g tmpfs /dev/shm
mount -t tmpfs tmpfs /mnt
mkdir /mnt/seen /mnt/checkout
mount --bind "{seen}" /mnt/seen
mount --bind "{checkout}" /mnt/checkout
mount -t tmpfs -o size=2g tmpfs /tmp
mkdir -p "{seen}" "{checkout}"  # either may lie below /tmp
mount --move /mnt/seen "{seen}"
mount --move /mnt/checkout "{checkout}"
printf "127.0.0.1 localhost\\n{address} {name}\\n" > /mnt/hosts
mount --bind /mnt/hosts /etc/hosts
: > /mnt/resolv.conf
mount --bind /mnt/resolv.conf /etc/resolv.conf
exec "{python}" -c "$FIRST"
"""
# Process 1: it reaps, as that of a machine does.
FIRST = """
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.1)
"""


@dataclass
class Node:
    """One node: its namespace, its address, the first of its processes."""

    namespace: str
    address: str
    wire: str
    init: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Process 1 of the node, as this machine numbers it; its end ends all others of the node."""
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()
        return int(children[0])

    def make_command(self, *words: object) -> list[str]:
        """The command that runs `words` on this node."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--uts", "--ipc", "--wd=/"]
        return [*enter, *map(str, words)]

    def run(self, *words: object) -> str:
        """What a command on this node prints."""
        return subprocess.run(self.make_command(*words), capture_output=True, text=True, timeout=400, check=True).stdout

    def lose(self) -> None:
        """Take the node away: its wire is cut first, as if it had lost its power."""
        subprocess.run(["ip", "-n", self.namespace, "link", "set", self.wire, "down"], check=True)
        os.kill(self.pid, signal.SIGKILL)
        self.init.wait(400)


@dataclass
class Cluster:
    """A Ray cluster of two nodes. The run is launched on `first`."""

    first: Node
    second: Node

    @property
    def address(self) -> str:
        """Where the cluster answers."""
        return f"{self.first.address}:{PORT}"

    def make_environment(self, **variables: str) -> dict[str, str]:
        """The variables of somebody who may join."""
        return {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, **variables}

    def start_ray(self, node: Node, gpus: int) -> None:
        """Start Ray on a node, as the docs say."""
        head = ("--head", f"--port={PORT}", "--include-dashboard=false")
        where = head if node is self.first else (f"--address={self.address}",)
        words = ("-c", RAY, "start", *where, f"--node-ip-address={node.address}")
        more = (f"--num-gpus={gpus}", "--num-cpus=8", f"--object-store-memory={OBJECT_STORE}")
        command = node.make_command(sys.executable, *words, *more, "--disable-usage-stats")
        # Workers that nobody has asked for would only take memory.
        quiet = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
        # A node ends this long after its head, not a minute.
        environment = self.make_environment(RAY_gcs_rpc_server_reconnect_timeout_s="10", **quiet)
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=START_LIMIT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def train(self, *options: object, **given: object) -> "subprocess.Popen[str]":
        """Start the launcher on the first node, without a key for the judge."""
        keys = {"GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", "RAY_ADDRESS": self.address}
        start = [] if "--resume" in options else ["--tiny"]
        return subprocess.Popen(
            self.first.make_command(ROOT / "train_grpo.sh", *start, *options, *make_words(given)),
            env=self.make_environment(**keys, **select_variables(given)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@contextlib.contextmanager
def two_nodes(folders: tuple[Path, Path], gpus: tuple[int, int]) -> Iterator[Cluster]:
    """Make two nodes with so many GPUs, which Ray simulates. Each sees its folder, and nothing else of /tmp."""
    number = os.getpid()
    subnet = f"10.232.{number % 250}"
    names, wires = [f"grpo-n{i}-{number}" for i in (1, 2)], [f"gn{i}{number % 10**6}" for i in (1, 2)]
    nodes: list[Node] = []
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", wires[0], "netns", names[0], "type", "veth", "peer", wires[1], "netns", names[1])
        for i, (name, wire, folder) in enumerate(zip(names, wires, folders, strict=True), 1):
            _run("ip", "-n", name, "address", "add", f"{subnet}.{i}/24", "dev", wire)
            _run("ip", "-n", name, "link", "set", wire, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "route", "add", "default", "dev", wire)
            address = f"{subnet}.{i}"
            nodes.append(Node(name, address, wire, _begin(name, f"node-{i}", address, folder)))
        cluster = Cluster(*nodes)
        for node, count in zip(nodes, gpus, strict=True):
            cluster.start_ray(node, count)
        yield cluster
    finally:
        for node in nodes:
            if node.init.poll() is None:
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(node.pid, signal.SIGKILL)
                node.init.wait(400)
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _begin(namespace: str, name: str, address: str, seen: Path) -> subprocess.Popen[bytes]:
    script = INIT.format(name=name, address=address, seen=seen, checkout=ROOT, python=sys.executable)
    separate = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child")
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, *separate, "sh", "-euc", script], env={**os.environ, "FIRST": FIRST}
    )
    deadline = time.monotonic() + START_LIMIT
    while not _is_ready(process):
        assert process.poll() is None and time.monotonic() < deadline, "the node did not start"
        time.sleep(0.05)
    return process


def _is_ready(process: subprocess.Popen[bytes]) -> bool:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return bool(children) and Path(f"/proc/{children[0]}/comm").read_text().startswith("python")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def make_folders(parent: Path) -> tuple[Path, Path]:
    """Make a folder for each node, which the other does not see."""
    for name in ("first", "second"):
        (parent / name).mkdir()
    return parent / "first", parent / "second"


def can_make_nodes() -> bool:
    """Whether this user may make network namespaces."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    name = f"grpo-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
    return made


def read_until(text: str, launcher: "subprocess.Popen[str]") -> str:
    """What the launcher prints up to a line with a text."""
    assert launcher.stdout
    shown = ""
    for line in launcher.stdout:
        shown += line
        if text in line:
            return shown
    raise AssertionError(f"not seen: {text}\n{shown[-5000:]}")


def find_holders(node: Node, key: str) -> list[str]:
    """The kinds of files on a node that have a planted key: of processes, of its memory, of its disk.

    Not of the checkout, where the tests name the key.
    """
    places = "/proc/[0-9]*/environ /proc/[0-9]*/cmdline /tmp /dev/shm"
    found = node.run(
        "sh", "-c", f"grep -rla --exclude-dir='{ROOT.name}' '[{key[0]}]{key[1:]}' {places} 2>/dev/null || true"
    ).split()
    return sorted({Path(file).name for file in found})


def list_run_processes(node: Node) -> list[str]:
    """The processes of a node that have the id of a run."""
    needle = processes.RUN_ID_VARIABLE
    found = node.run("sh", "-c", f"grep -l {needle} /proc/[0-9]*/environ || true")
    return found.split()


needs_nodes = pytest.mark.skipif(not can_make_nodes(), reason="needs root and network namespaces")
