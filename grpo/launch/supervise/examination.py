"""What the processes of a run that makes no progress are doing: stacks, states, and the cluster, in one file."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

LIMIT = 90.0  # seconds for all stacks
ONE_LIMIT = 15.0
CLUSTER_LIMIT = 30.0


def write(file: Path, watched: Mapping[int, str], environment: Mapping[str, str]) -> None:
    """Write what is known of these processes, by pid, and of the cluster that the environment names."""
    with file.open("w", encoding="utf-8") as report:
        for part in (*_stacks(watched), _cluster(environment)):
            report.write(part + "\n\n")
            report.flush()


def _stacks(watched: Mapping[int, str]) -> Iterator[str]:
    until = time.monotonic() + LIMIT
    for pid, role in watched.items():
        head = f"== {role} (pid {pid}): {describe_state(pid)}"
        yield f"{head}\n{_stack(pid)}" if time.monotonic() < until else f"{head}\nno time left for its stack"


def describe_state(pid: int) -> str:
    """Return a process's state, number of threads, and where it waits in the kernel."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        waits = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return "it has ended"
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    return f"{fields['State'].strip()}, {fields['Threads'].strip()} threads, waits in {waits or 'nothing'}"


def is_stopped(pid: int) -> bool:
    """Tell whether somebody has stopped a process (SIGSTOP)."""
    return describe_state(pid).startswith("T (stopped)")


def _stack(pid: int) -> str:
    # It only reads: a stopped process cannot take part.
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--nonblocking", "--pid", str(pid)]
    return _output(command, ONE_LIMIT)


def _cluster(environment: Mapping[str, str]) -> str:
    if not environment.get("RAY_ADDRESS"):
        return "== no Ray cluster"
    command = [sys.executable, "-P", "-m", "grpo.launch.supervise.cluster_state"]
    return "== Ray\n" + _output(command, CLUSTER_LIMIT, environment)


def _output(command: list[str], limit: float, environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + (done.stderr if done.returncode else "")
