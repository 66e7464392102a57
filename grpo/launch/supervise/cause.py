"""Why a run failed, in one line with a remedy: which process died how, a full disk, or the exception that ended it."""

import re
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.launch.supervise import last_words
from grpo.launch.supervise.last_words import LastWords, tail
from grpo.launch.supervise.witness import Death, describe_end
from grpo.stack import machine
from grpo.stack.problem import Problem

LOG_LINES = 1000  # of the driver's log, which may say why a process died
FULL_BYTES = 16 * 2**20  # nothing of a run is written to a disk with less
_FULL = re.compile(r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]")
# Ray's memory monitor writes this into ray.exceptions.OutOfMemoryError.
_LOW_MEMORY = re.compile(r"Memory on the node \(IP: ([^,]+),.*?\) was ([\d.]+)GB / ([\d.]+)GB")
_NO_FILES = re.compile(r"Too many open files|\[Errno 24\]")
_NO_GRAPHS = "if this says nothing of another cause, start engines without CUDA graphs: --no-graphs"
_FREE_MEMORY = "end other programs, or see the host memory in --plan"
LOST_REMEDY = (
    "see whether the machine runs and has a network; start Ray on it again, or on another one, until the cluster has "
    "enough free GPUs"
)
OOM_COUNTER = Path("/proc/vmstat")


@dataclass
class Evidence:
    """What is known of a failed run.

    Attributes:
        log: the driver's log.
        folders: where the run writes, by what the user calls them.
        code: the driver's exit code, -n after signal n; None if a service failed first.
        deaths: in the order in which they were seen.
        words: the exception that ended the driver; None if it left none.
        out_of_memory: processes that the kernel ended for memory on this machine during the run.
        silent_head: the address of a joined cluster that does not answer any more; "" if it does.
        has_graphs: whether the engines have CUDA graphs, which they capture as they start.
    """

    log: Path
    folders: Mapping[str, Path]
    code: int | None
    deaths: Sequence[Death]
    words: LastWords | None
    out_of_memory: int = 0
    silent_head: str = ""
    has_graphs: bool = False

    @property
    def lacks_engine(self) -> bool:
        """Whether an engine did not start."""
        return self.words is not None and self.words.what.startswith(last_words.NO_ENGINE)


def find(evidence: Evidence) -> Problem | None:
    """Return the first cause that the evidence shows; None if only the log can tell."""
    words = evidence.words
    if full := _full_disk(words, evidence.folders):
        return full
    if _had_no_files(evidence):
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        remedy = "raise it (ulimit -Hn), and see that no other user holds connections to the run's ports"
        return Problem(f"a process had too many open files; the limit is {soft:,}", remedy)
    is_killed = evidence.code is not None and evidence.code < 0
    driver = Problem(f"the driver {describe_end(evidence.code)}", _memory_remedy(evidence)) if is_killed else None
    if driver and evidence.code != -signal.SIGABRT:  # Ray aborts a driver that has lost its cluster
        return driver
    if words and words.lost:
        several = len(words.lost) > 1
        lost = f"node{'s' * several} {', '.join(words.lost)} {'were' if several else 'was'} lost"
        return Problem(lost, LOST_REMEDY)
    if evidence.silent_head:
        return Problem(f"the head of the Ray cluster at {evidence.silent_head} was lost", LOST_REMEDY)
    if death := _first_death(evidence):
        return _explain_death(death, evidence)
    if evidence.lacks_engine and (why := last_words.find_engine_failure(evidence.log)):
        return Problem(f"an engine did not start: {why}", _memory_remedy(evidence) or _graphs_remedy(evidence))
    if words:
        remedy = words.remedy or _rays_memory_remedy(words) or _graphs_remedy(evidence)
        return Problem(f"{words.kind}: {words.what}", remedy)
    return driver


def _full_disk(words: LastWords | None, folders: Mapping[str, Path]) -> Problem | None:
    full = [
        f"the disk of {name} is full: {folder}"
        for name, folder in folders.items()
        if folder.is_dir() and machine.disk_free(folder) < FULL_BYTES
    ]
    if words and _FULL.search(words.what):
        full = [*full, words.what] if full else [f"a disk is full: {words.what}"]
    return Problem("; ".join(full), "free disk space, or set CKPT_DIR or METRICS_DIR to another disk") if full else None


def _had_no_files(evidence: Evidence) -> bool:
    """Tell whether the driver or a process that died had no file descriptors left; gloo aborts then."""
    if evidence.words and _NO_FILES.search(evidence.words.what):
        return True
    writers = [re.compile(rf"\bpid={death.pid}\b") for death in evidence.deaths]
    lines = filter(_NO_FILES.search, tail(evidence.log, LOG_LINES))
    return any(writer.search(line) for line in lines for writer in writers)


def _first_death(evidence: Evidence) -> Death | None:
    """Return the death that ended the run: one before the driver's exception, which else ended the others itself."""
    words = evidence.words
    before = [death for death in evidence.deaths if not words or death.pid not in words.living]
    by_signal = [death for death in before if death.code is not None and death.code < 0]
    # If the driver saw only that something died, a process that ended by its own exception is the cause.
    saw_only_a_death = words is None or words.kind in last_words.OF_DEATHS or bool(_rays_memory_remedy(words))
    return next(iter(by_signal or (before if saw_only_a_death else [])), None)


def _explain_death(death: Death, evidence: Evidence) -> Problem:
    own = last_words.find_words(death.pid, evidence.log) if death.code is None or death.code >= 0 else None
    remedy = _rays_memory_remedy(evidence.words) if death.code in (None, -signal.SIGKILL) else ""
    remedy = remedy or _memory_remedy(evidence) or _graphs_remedy(evidence)
    return Problem(f"{death}: {own}" if own else str(death), remedy)


def _graphs_remedy(evidence: Evidence) -> str:
    return _NO_GRAPHS if evidence.lacks_engine and evidence.has_graphs else ""


def _memory_remedy(evidence: Evidence) -> str:
    """Return what to do if the kernel has ended processes for lack of memory; "" if it has not."""
    if not evidence.out_of_memory:
        return ""
    return (
        f"the kernel ended {evidence.out_of_memory} processes of this machine for lack of memory during the run: "
        f"{_FREE_MEMORY}"
    )


def _rays_memory_remedy(words: LastWords | None) -> str:
    """Return what to do if Ray's memory monitor has killed a worker; "" if it has not."""
    low = _LOW_MEMORY.search(words.what) if words else None
    if not low:
        return ""
    address, used, total = low.groups()
    return f"Ray killed a worker for lack of memory ({used} of {total} GB were in use on {address}): {_FREE_MEMORY}"


def count_out_of_memory_kills() -> int:
    """Return how many processes the kernel has ended for lack of memory since the machine started."""
    try:
        fields = dict(line.split() for line in OOM_COUNTER.read_text().splitlines())
    except OSError:
        return 0
    return int(fields.get("oom_kill", 0))
