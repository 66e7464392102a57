"""Which processes and which shared memory are a run's. Real processes."""

import os
import subprocess
import time
from pathlib import Path

from grpo.launch.supervise import processes


def test_marked_processes_are_found_by_their_exact_run_id(bystander) -> None:
    stray = subprocess.Popen(["sleep", "300"], env={processes.RUN_ID_VARIABLE: "abc"})
    try:
        deadline = time.monotonic() + 10
        while not Path(f"/proc/{stray.pid}/environ").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)  # during its exec, a process has no environment
        assert [process.pid for process in processes.find_marked("abc")] == [stray.pid]
        assert processes.find_marked("ab") == set()
    finally:
        stray.kill()
        stray.wait()


def test_shared_memory_in_use_by_others_stays(tmp_path: Path) -> None:
    from multiprocessing import shared_memory

    segment = shared_memory.SharedMemory(create=True, size=1000)
    file = Path("/dev/shm", segment.name)
    assert file in processes.find_shared_memory([os.getpid()])
    assert processes.remove_shared_memory([file, Path("/dev/shm/not-there")]) == []
    assert file.exists()
    segment.close()
    assert processes.remove_shared_memory([file]) == [file]
    assert not file.exists()
    segment._track = False  # type: ignore[attr-defined]
