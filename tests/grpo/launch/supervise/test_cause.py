"""The end of a failed run names its cause. The processes are real, and so are the signals and the full disk."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from ray import exceptions

from grpo.launch.supervise import cause, last_words, witness
from grpo.launch.supervise.cause import Evidence
from grpo.launch.supervise.last_words import LastWords
from grpo.launch.supervise.witness import Death, Witness
from grpo.stack.problem import UserError
from tests.faults import assert_seen
from tests.supervised import wait_until

EXIT_CODES_ARE_KNOWN = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 15)


@pytest.fixture
def spawn() -> Iterator[Callable[[str, str], subprocess.Popen]]:
    """Start processes with the titles of a run's. Their parent does not tell how they end."""
    started: list[subprocess.Popen] = []

    def begin(title: str, code: str = "time.sleep(100)") -> subprocess.Popen:
        program = f"import setproctitle, time; setproctitle.setproctitle({title!r}); print(1, flush=True); {code}"
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert child.stdout and child.stdout.readline()
        started.append(child)
        return child

    yield begin
    for child in started:
        child.kill()
        child.wait()


def make_witness(*children: subprocess.Popen) -> Witness:
    witness = Witness()
    witness.watch_new([psutil.Process(child.pid) for child in children])
    return witness


def wait_for_deaths(witness: Witness) -> list[Death]:
    found: list[Death] = []
    wait_until(lambda: bool(found.extend(witness.deaths()) or found), "nobody died", 10)
    return found


# An engine's actor that spawns a core, which spawns a worker. Each prints its pid.
ENGINE = """
import multiprocessing, os, setproctitle, time

def run(code):
    multiprocessing.get_context("spawn").Process(target=exec, args=(code,)).start()

worker = "import os, time; os.write(1, b'%d\\\\n' % os.getpid()); time.sleep(100)"  # at once: they share a pipe
core = f"import multiprocessing as m; m.get_context('spawn').Process(target=exec, args=({worker!r},)).start(); {worker}"
title = "import setproctitle; setproctitle.setproctitle('VLLM::EngineCore'); "
if __name__ == "__main__":
    setproctitle.setproctitle("ray::LLMRayActor.generate")
    for code in CHILDREN:
        run(code)
    time.sleep(100)
"""


@pytest.mark.parametrize(
    ("children", "roles"),
    [
        ("[core]", ["a worker of an engine", "the core of an engine"]),
        ("[title + core]", ["a worker of an engine", "the core of an engine"]),
        ("[title + worker, worker]", [None, "the core of an engine"]),
    ],
)
def test_processes_of_vllm_need_no_title(children: str, roles: list[str | None]) -> None:
    """setproctitle sometimes sets none. Others that an engine spawns, such as a pool of workers, have no role."""
    program = [sys.executable, "-c", ENGINE.replace("CHILDREN", children)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as engine:
        try:
            assert engine.stdout
            started = [psutil.Process(int(engine.stdout.readline())) for _ in roles]
            found = [witness.find_role(process) for process in started]
            assert sorted(found, key=str) == sorted(roles, key=str)
        finally:
            for process in [*psutil.Process(engine.pid).children(recursive=True), engine]:
                process.kill()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_death_is_seen_with_its_signal(spawn, signum: signal.Signals) -> None:
    engine, rank = spawn("ray::LLMRayActor.generate"), spawn("ray::PolicyWorker.update")
    witness = make_witness(engine, rank, spawn("ray::IDLE"))
    assert witness.list_watched() == {engine.pid: "an engine", rank.pid: "an actor rank"}
    engine.send_signal(signum)
    engine.wait()
    [death] = wait_for_deaths(witness)
    assert (death.role, death.pid) == ("an engine", engine.pid)
    if EXIT_CODES_ARE_KNOWN:
        assert str(death) == f"an engine was killed by {signum.name} (pid {engine.pid})"
    assert witness.list_watched() == {rank.pid: "an actor rank"}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_deaths_that_are_noticed_late_keep_their_order(spawn, order: Sequence[int]) -> None:
    children = [spawn(title) for title in ("gcs_server", "raylet", "ray::LLMRayActor.generate")]
    witness = make_witness(*children)
    for place in order:
        children[place].kill()
        children[place].wait()
    assert [death.pid for death in witness.deaths()] == [children[place].pid for place in order]


def test_who_lives_when_an_exception_comes_is_not_its_cause(spawn) -> None:
    engine, rank = spawn("ray::LLMRayActor.generate"), spawn("ray::PolicyWorker.update")
    witness = make_witness(engine, rank)
    engine.kill()
    engine.wait()
    kept = last_words.find_first_cause(RuntimeError("Connection closed by peer"))
    assert rank.pid in kept.living and engine.pid not in kept.living
    assert [death.pid for death in witness.last_deaths()] == [engine.pid]


def make_evidence(tmp_path: Path, **changes: object) -> Evidence:
    known: dict = {"log": tmp_path / "driver.log", "folders": {}, "code": 1, "deaths": [], "words": None}
    return Evidence(**known | changes)


def make_last_words(kind: str, what: str, remedy: str = "", living: Sequence[int] = ()) -> LastWords:
    return LastWords(kind, what, remedy, [*living])


KILLED = Death("an actor rank", 7, -9)
# Ray 2.55.1 writes it like this; the text goes on beyond what is kept of it.
LOW_MEMORY = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.7, ID: 30eba0aca0) "
    "was 22.37GB / 23.54GB (0.950401), which exceeds the memory usage threshold of 0.950000; "
) + "- bytes spillable: 0; " * 30


CRASHED = replace(KILLED, code=-11)
OF_DEATH = make_last_words("ActorDiedError", "The actor died unexpectedly")
RAY_KILLED = last_words.find_first_cause(
    exceptions.OutOfMemoryError(LOW_MEMORY)
)  # Ray's memory monitor kills before the kernel does
BY_RAY = "22.37 of 23.54 GB were in use on 10.0.0.7"


@pytest.mark.parametrize(
    ("known", "what", "remedy"),
    [
        ({"code": 3}, None, ""),
        # a killed process is the cause of what others then say, unless the failing driver has ended it
        ({"deaths": [KILLED], "words": make_last_words("RuntimeError", "Connection closed by peer")}, str(KILLED), ""),
        ({"deaths": [KILLED], "words": OF_DEATH}, "an actor rank was killed by SIGKILL (pid 7)", ""),
        (
            {"deaths": [KILLED], "words": make_last_words("ValueError", "wrong", "mend", living=[7])},
            "ValueError: wrong",
            "mend",
        ),
        # a driver that crashes, whereupon Ray ends the ranks, and one that Ray aborts
        ({"code": -11, "deaths": [KILLED]}, "the driver was killed by SIGSEGV", ""),
        ({"code": -6, "deaths": [KILLED]}, str(KILLED), ""),
        ({"deaths": [KILLED], "out_of_memory": 1}, str(KILLED), "lack of memory"),
        ({"deaths": [KILLED], "words": RAY_KILLED}, str(KILLED), BY_RAY),
        ({"deaths": [replace(KILLED, code=None)], "words": RAY_KILLED}, "an actor rank died (pid 7)", BY_RAY),
        ({"words": RAY_KILLED}, "OutOfMemoryError: 1 worker(s) were killed", BY_RAY),
        ({"deaths": [CRASHED], "words": RAY_KILLED}, str(CRASHED), ""),
        ({"code": -11, "words": RAY_KILLED}, "the driver was killed by SIGSEGV", ""),
        ({"deaths": [KILLED], "words": make_last_words("OutOfMemoryError", "CUDA out of memory")}, str(KILLED), ""),
        (
            {"deaths": [Death("the controller", 7, None)], "words": replace(OF_DEATH, lost=["10.0.0.2"])},
            *("node 10.0.0.2 was lost", "start Ray on it again"),
        ),
        (
            {"words": replace(OF_DEATH, lost=["10.0.0.2", "10.0.0.3"])},
            "nodes 10.0.0.2, 10.0.0.3 were lost",
            "start Ray",
        ),
        (
            {"code": -6, "deaths": [Death("the controller", 7, -9)], "silent_head": "10.0.0.9:6379"},
            *("the head of the Ray cluster at 10.0.0.9:6379 was lost", "start Ray on it again"),
        ),
    ],
)
def test_the_first_cause_is_found(tmp_path: Path, known: dict, what: str | None, remedy: str) -> None:
    found = cause.find(make_evidence(tmp_path, **known))
    assert (found is None) == (what is None)
    if found:
        assert found.what.startswith(str(what)) and remedy in found.remedy and bool(remedy) == bool(found.remedy)


def test_a_process_that_ends_itself_speaks_for_itself(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text(
        "(EngineCore_DP0 pid=8) ERROR 11-23 [core.py:1] torch.OutOfMemoryError: CUDA out of memory\n"
        "(EngineCore_DP0 pid=9) ValueError: of another engine\n(LLMRayActor pid=6) RuntimeError: later\n"
    )
    died = Death("the core of an engine", 8, 1)
    found = cause.find(
        make_evidence(tmp_path, deaths=[died], words=make_last_words("EngineDeadError", "see the stack trace above"))
    )
    assert found and found.what == (
        "the core of an engine ended with exit code 1 (pid 8): torch.OutOfMemoryError: CUDA out of memory"
    )


# As vLLM 0.15 and Ray 2.48 write them, with their colors.
_RAY, _CORE, _WORKER = (
    "\x1b[36m(LLMRayActor pid=6)\x1b[0m ",
    "\x1b[0;36m(EngineCore_DP0 pid=8)\x1b[0;0m ",
    "(Worker_TP1 pid=9) ",
)
NO_ENGINE = f"""{_RAY}RuntimeError: Engine core initialization failed. See root cause above.
{_RAY}{_WORKER}ERROR 11-26 23:34:52 [multiproc_executor.py:772]     raise RuntimeError("the message of a line: no")
{_RAY}{_WORKER}ERROR 11-26 23:34:52 [multiproc_executor.py:772] RuntimeError: port 7 is a name already: start again
{_RAY}{_CORE}ERROR 11-26 23:34:53 [core.py:946] Exception: WorkerProc initialization failed due to an exception
"""


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_text(NO_ENGINE)
    told = make_last_words(
        "RuntimeError", "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    )
    found = cause.find(make_evidence(tmp_path, words=told))
    assert found and found.what == "an engine did not start: RuntimeError: port 7 is a name already: start again"
    segfault = Death("the core of an engine", 8, -signal.SIGSEGV)
    for known in ({}, {"deaths": [segfault]}, {"log": tmp_path / "absent"}):
        for has_graphs in (True, False):
            found = cause.find(make_evidence(tmp_path, words=told, has_graphs=has_graphs, **known))
            assert found and ("--no-graphs" in found.remedy) == has_graphs
    later = make_last_words("RuntimeError", "in step 7")
    found = cause.find(make_evidence(tmp_path, words=later, has_graphs=True))
    assert found and not found.remedy, "an engine that had started has captured its graphs"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system without a free byte."""
    folder = tmp_path / "full"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False).returncode:
        pytest.skip("needs the right to mount")
    (folder / "fill").write_bytes(b"0" * 2**20)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_even_if_nobody_could_write_so(tmp_path: Path, full_disk: Path) -> None:
    folders = {"the logs": tmp_path, "checkpoints": full_disk}
    found = cause.find(
        make_evidence(tmp_path, folders=folders, deaths=[KILLED], words=make_last_words("ActorDiedError", "died"))
    )
    assert found and found.what == f"the disk of checkpoints is full: {full_disk}" and "free disk space" in found.remedy
    assert_seen("a disk is full", str(found))
    with pytest.raises(OSError) as raised:
        (full_disk / "more").write_bytes(b"0" * 2**20)
    found = cause.find(make_evidence(tmp_path, words=last_words.find_first_cause(raised.value)))
    assert found and found.what.startswith("a disk is full: ")


def test_too_many_open_files_are_told(tmp_path: Path) -> None:
    aborted = Death("an actor rank", 77, -signal.SIGABRT)
    known = make_evidence(tmp_path, deaths=[aborted], words=make_last_words("ActorDiedError", "died"))
    known.log.write_text("(Judge pid=777) OSError: [Errno 24] Too many open files\n(Actor pid=77) terminate called\n")
    found = cause.find(known)
    assert found and "SIGABRT" in found.what, "another process had too many, and lives"
    with known.log.open("a") as log:
        log.write("(Actor pid=77, ip=127.0.0.1)   what():  [gloo/tcp/pair.cc:80] accept: Too many open files\n")
    for seen in (
        known,
        make_evidence(tmp_path, words=make_last_words("OSError", "[Errno 24] Too many open files: 'x'")),
    ):
        found = cause.find(seen)
        assert found and "too many open files" in found.what and "ulimit -Hn" in found.remedy


def test_the_driver_keeps_the_exception_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_API_KEY", "a-secret-value")
    first = UserError("the adapter a-secret-value is not finite", "lower LEARNING_RATE")
    outer = exceptions.RayTaskError("fit", "Traceback ...", exceptions.RayTaskError("save", "Traceback ...", first))
    kept = last_words.find_first_cause(outer)
    assert (kept.kind, kept.what, kept.remedy) == (
        *("UserError", "the adapter <THE_API_KEY> is not finite"),
        "lower LEARNING_RATE",
    )


def test_an_exception_at_the_start_of_an_actor_is_found_in_the_message_of_its_death() -> None:
    trace = 'Traceback (most recent call last):\n  File "x"\nKeyError: 1\n\nTraceback (most recent call last):\n'
    failed = exceptions.RayTaskError("__init__", trace + "ValueError: no such model", ValueError("no such model"))
    kept = last_words.find_first_cause(exceptions.ActorDiedError(failed))
    assert (kept.kind, kept.what) == ("ValueError", "no such model")


def test_what_ends_a_process_is_kept_for_the_launcher(tmp_path: Path) -> None:
    program = "from grpo.launch.supervise import last_words; last_words.install(); raise ValueError('the reason')"
    file = last_words.locate_file(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, last_words.FILE_VARIABLE: str(file)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "ValueError: the reason" in done.stderr
    kept = last_words.read(tmp_path)
    assert kept and (kept.kind, kept.what) == ("ValueError", "the reason")


def test_other_nodes_are_not_asked_for_in_a_run_on_one() -> None:
    assert last_words.add_nodes(OF_DEATH) == OF_DEATH
