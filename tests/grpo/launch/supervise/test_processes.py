"""Which processes and which shared memory are a run's. Real processes."""

import os
import signal
import subprocess
import time
from pathlib import Path

from grpo.launch.supervise import processes
from grpo.launch.supervise.processes import Process


def test_a_pid_that_is_in_use_again_gets_no_signal(bystander) -> None:
    row = processes.read_process(bystander.pid)
    assert row is not None
    earlier = Process(row.pid, row.parent, row.state, row.started - 1)
    assert processes.send(earlier, signal.SIGKILL) is False
    assert processes.send(row, 0) is True


def test_a_marked_process_is_found_wherever_it_stands(bystander) -> None:
    stray = subprocess.Popen(["sleep", "300"], env={processes.RUN_ID_VARIABLE: "abc"})
    try:
        deadline = time.monotonic() + 10
        while not Path(f"/proc/{stray.pid}/environ").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)  # in the middle of its exec a process has no environment
        assert processes.marked("abc", [stray.pid, bystander.pid]) == {stray.pid}
        assert processes.marked("ab", [stray.pid, bystander.pid]) == set()
    finally:
        stray.kill()
        stray.wait()


def test_shared_memory_in_use_by_others_stays(tmp_path: Path) -> None:
    from multiprocessing import shared_memory

    segment = shared_memory.SharedMemory(create=True, size=1000)
    file = Path("/dev/shm", segment.name)
    assert file in processes.shared_memory_of([os.getpid()])
    assert processes.remove_shared_memory([file, Path("/dev/shm/not-there")]) == []
    assert file.exists()
    segment.close()
    assert processes.remove_shared_memory([file]) == [file]
    assert not file.exists()
    segment._track = False  # type: ignore[attr-defined]
