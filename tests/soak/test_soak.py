"""The parts of a soak that need no run: what a fault hits, what equal numbers are, where keys are found, the table."""

import json
import os
import subprocess
import sys

import psutil
import pytest
import torch
from safetensors.torch import save_file

from grpo.launch.supervise.processes import is_alive
from grpo.launch.supervise.witness import DAEMONS, ROLES
from tests.soak import faults, proof, table
from tests.soak.disk import SmallDisk
from tests.soak.table import Hit, Report
from tests.supervised import read_command_line, wait_until

TITLED = "import setproctitle, time; setproctitle.setproctitle({!r}); time.sleep(100)"


@pytest.fixture
def processes():
    started = []
    for title in ("ray::LLMRayActor.generate_responses", "VLLM::EngineCore", "/somewhere/raylet"):
        started.append(subprocess.Popen([sys.executable, "-c", TITLED.format(title)]))
        wait_until(lambda title=title: read_command_line(started[-1].pid).startswith(title), "no title")
    words = ["-c", "import time; time.sleep(100)", "-m", "openrlhf.cli.train_ppo_ray"]
    started.append(subprocess.Popen([sys.executable, *words]))
    wait_until(lambda: read_command_line(started[-1].pid).endswith(words[-1]), "it did not start")
    yield [psutil.Process(process.pid) for process in started]
    for process in started:
        process.kill()
        process.wait()


def test_a_fault_hits_the_process_with_the_role(processes):
    roles = ("an engine", "the core of an engine", "Ray's raylet", "the driver")
    assert [faults.find(role, processes) for role in roles] == processes
    assert faults.find("the keeper", processes) is None
    assert {*faults.KILLED} - {*ROLES.values(), *DAEMONS.values(), *faults.PARTS} == {"the launcher"}, (
        "a role that nobody finds"
    )


def test_a_line_is_cut_in_its_middle(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert not faults.cut_last_line(file)
    file.write_text('{"step": 1}\n{"step": 2}\n')
    assert faults.cut_last_line(file)
    assert file.read_text() == '{"step": 1}\n{"step'


def test_times_may_differ_and_no_digit_of_anything_else():
    row = {"step": 1, "time": 1.0, "reward": 0.5, "judge_calls.a": 0.5, "seconds": {"train": 1.0}}
    again = row | {"time": 9.0, "judge_calls.a": 0.0, "seconds": {}}
    assert proof.find_differences([row], [again]) == []
    assert proof.find_differences([row], [row | {"reward": 0.5000000001}]) == [
        "step 1: reward is 0.5000000001, not 0.5"
    ]
    assert proof.find_differences([row], [row | {"kl": 0.0}]) == ["step 1: kl is 0.0, not None"]
    assert proof.find_differences([row], []) == ["steps [] instead of [1]"]
    assert proof.find_differences([row], [row, row]) == ["steps [1, 1] instead of [1]"]


def test_a_key_is_found_in_files_also_over_the_edge_of_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(proof, "CHUNK", 8)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "log").write_bytes(b"12345planted-key678")
    (tmp_path / "clean").write_bytes(b"planted-kex")
    assert proof.find_in_files([tmp_path], ["planted-key"]) == [str(tmp_path / "in" / "log")]


def test_a_key_is_found_on_command_lines_and_in_foreign_environments():
    key = "planted-key-of-this-test"
    named = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)", key])
    private = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], env={**os.environ, "K": key})
    try:
        wait_until(lambda: key in read_command_line(named.pid), "no command line")
        ours = {named.pid, private.pid}
        assert proof.find_in_processes([key], lambda: ours) == [f"cmdline of {named.pid}"]
        wait_until(lambda: len(proof.find_in_processes([key], set)) == 2, "the environment was not read")

        lists = iter([{named.pid}, {named.pid, private.pid}])  # the first misses the child of one that has just ended
        assert proof.find_in_processes([key], lambda: next(lists)) == [f"cmdline of {named.pid}"]

        victim = psutil.Process(private.pid)

        def has_just_ended() -> set[int]:
            victim.kill()  # and is not reaped
            wait_until(lambda: not is_alive(victim), "it lives")
            return {named.pid}

        assert proof.find_in_processes([key], has_just_ended) == [f"cmdline of {named.pid}"]
    finally:
        for process in (named, private):
            process.kill()
            process.wait()


def test_a_disk_is_filled_once(tmp_path):
    try:
        small = SmallDisk(tmp_path / "disk")
    except PermissionError as error:
        pytest.skip(str(error))
    try:
        [fault] = [fault for fault in faults.list_faults(small) if "disk" in fault.name]
        (small.folder / "before").write_bytes(bytes(50_000))
        assert fault.inject(None) and not fault.inject(None), "it is full"
        with pytest.raises(OSError, match="No space left"):
            (small.folder / "more").write_bytes(bytes(1_000_000))
        small.free()
        (small.folder / "more").write_bytes(bytes(1_000_000))
    finally:
        small.close()
    assert not [fault for fault in faults.list_faults(None) if "disk" in fault.name]


def test_the_table_says_what_is_not_fine(tmp_path):
    hit = Hit("SIGKILL: an engine", "generate", 3, ["restarting from step 2 in 10 s"], 17.4)
    reports = [
        Report(0, 2.0, is_complete=True),
        Report(1, 4.2, is_complete=True, hits=[hit, Hit("SIGTERM", "start", 1, by_hand=True)]),
    ]
    text = table.write(tmp_path, reports)
    assert "| 1 | SIGKILL: an engine | step 3: generate | `restarting from step 2 in 10 s` | by itself | 17 |" in text
    assert "| 1 | SIGTERM | step 1: start | nothing | with `--resume` | - |" in text
    assert text.endswith("2 runs, 2 faults: all complete and equal, and nothing is left\n")
    assert json.loads((tmp_path / "soak.json").read_text())[1]["hits"][0]["step"] == 3
    reports[1].leaks = ["a", "b", "c"]
    assert "| a; b; and 1 more |" in table.format_markdown(reports)
    assert table.format_markdown(reports).endswith("not fine: runs 1\n")


def test_tensors_are_compared_and_not_their_files(tmp_path):
    files = [tmp_path / f"{name}.safetensors" for name in "abc"]
    tensors = {"x": torch.ones(3), "y": torch.zeros(2)}
    save_file(tensors, files[0], {"format": "pt"})
    save_file(tensors, files[1])
    save_file(tensors | {"y": torch.tensor([0.0, 1e-8])}, files[2])
    assert proof.has_same_tensors(files[0], files[1]) and not proof.has_same_tensors(files[0], files[2])
