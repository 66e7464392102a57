"""Attacks from inside a sandbox. Each really runs, and each is looked at from outside."""

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.environments.sandbox.confinement import Limits
from grpo.environments.sandbox.sandbox import ATTEMPTS, GuestDied, Sandbox, find_escapes
from tests.grpo.environments.sandbox.attacker import ROOT, SMALL, attack
from tests.supervised import is_alive, wait_until


def test_nothing_escapes_and_each_attempt_is_one():
    assert asyncio.run(find_escapes(Limits(memory_mb=64))) == []
    secret = Path("/var/tmp/sandbox-probe")
    values = {"secret": str(secret), "parent": os.getpid(), "memory": 1000}
    for what, code in ATTEMPTS.items():  # outside a sandbox, each is possible
        secret.write_text("x")
        done = subprocess.run([sys.executable, "-c", code.format(**values)], capture_output=True, text=True)
        assert done.returncode == 0, f"{what}: {done.stderr}"
    secret.unlink(missing_ok=True)


@pytest.mark.parametrize("call", [
    "import os; os.posix_spawn('/bin/true', ['true'], {})", "import os; assert os.system('true') == 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(435, 0, 0) >= 0",  # clone3
    "import multiprocessing as m; m.Process().start()",
])  # fmt: skip
def test_no_other_way_makes_a_process(call):
    text, after = attack(call)
    assert "Error" in text and after == "2\n"


@pytest.mark.parametrize("code", [
    "open({path!r}, 'a').write('x')", "open({path!r}, 'r+').write('x')",
    *(f"import os; os.{call}" for call in (
        "truncate({path!r}, 0)", "open({path!r}, os.O_RDONLY | os.O_TRUNC)", "remove({path!r})", "chmod({path!r}, 0)",
        "rename({path!r}, '/tmp/taken')", "symlink('/etc/passwd', {path!r} + '2')", "mkdir({path!r} + '3')",
        "link({path!r}, {path!r} + '4')", "memfd_create('x')", "setxattr({path!r}, 'user.x', b'x')",
        "utime({path!r})", "mkfifo({path!r} + '5')",
    )),
])  # fmt: skip
def test_nothing_outside_is_changed(code, tmp_path):
    tmp_path.chmod(0o777)
    file = tmp_path / "metrics.jsonl"
    file.write_text("kept")
    file.chmod(0o666)
    before = file.stat()
    text, _ = attack(code.format(path=str(file)))
    assert "PermissionError" in text or "OSError" in text
    assert file.read_text() == "kept" and file.stat().st_mode == before.st_mode and os.listdir(tmp_path) == [file.name]


SECRETS = """
import ctypes, os, sys
found = []
for name in ('/proc/self/environ', '/proc/self/mem', '/proc/{parent}/environ', '/proc/{parent}/cmdline',
             '/proc/1/environ', '/proc/{parent}/fd', '/proc/{parent}/maps', {file!r}, {root!r},
             '/root/.netrc', '/etc/passwd'):
    try:
        found.append(open(name, 'rb').read() if not os.path.isdir(name) else os.listdir(name))
    except OSError:
        pass
found.append(dict(os.environ))
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')
block = ctypes.cast(environ[0], ctypes.c_void_p).value
found.append(ctypes.string_at(block - 2000, 3000))  # the arguments and variables this process began with
for other in range(3, 64):
    try:
        os.read(other, 0); found.append(other)
    except OSError:
        pass
print(found)
"""


def test_the_runs_secrets_and_files_cannot_be_read(tmp_path):
    """In a process of its own: the variables that a process began with are the ones to look for."""
    (tmp_path / "train.jsonl").write_text("the gold answers")
    code = SECRETS.format(parent="PARENT", file=str(tmp_path / "train.jsonl"), root=str(ROOT))
    script = f"""
import os
from tests.grpo.environments.sandbox.attacker import attack
from grpo.environments.sandbox.confinement import Limits
print(attack({code!r}.replace("PARENT", str(os.getpid())), limits=Limits(output_chars=10**6))[0])
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict.fromkeys(("GEMINI_API_KEY", "HF_TOKEN"), "a-secret-key")
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert said.returncode == 0, said.stderr
    assert "PATH" in said.stdout, "it saw the variables it may see"
    for secret in ("a-secret-key", "API_KEY", "the gold answers", "train_grpo.sh", "root:"):
        assert secret not in said.stdout
    assert said.stdout.rstrip().endswith("3]"), "its own socket is the only open file"


def test_of_other_files_only_their_existence_size_and_times_are_seen():
    text, _ = attack(f"import os; print(os.stat({str(ROOT)!r}).st_size > 0); os.listdir({str(ROOT)!r})")
    assert text.startswith("True\n") and "PermissionError" in text


def test_no_network_not_even_to_this_machine():
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    for code in (
        f"import socket; socket.create_connection(('127.0.0.1', {port}))",
        "import socket; socket.socketpair()",
        f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}')",
        "import ctypes; assert ctypes.CDLL(None).syscall(425, 8, 0) >= 0",  # io_uring, which could open sockets
    ):
        assert "Error" in attack(code)[0]
    assert not select.select([server], [], [], 0)[0]
    server.close()


DEAF = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        while True: pass
    except BaseException:
        pass
"""


@pytest.mark.parametrize("code", [
    "while True: pass",
    DEAF,
    "sum(range(10**13))", "9**9**9", "import ctypes; l = ctypes.CDLL(None)\nwhile True: l.usleep(10**6)",
])  # fmt: skip
def test_endless_code_ends_at_its_deadline_with_its_process(code):
    async def run_late():
        sandbox = await Sandbox.start(Limits())
        pid = int((await sandbox.run("import os; os.getpid()")).text)
        assert is_alive(pid)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await sandbox.run(code)
        assert not sandbox.is_open
        wait_until(lambda: not is_alive(pid), "the guest outlived its deadline", 60)

    asyncio.run(run_late())


def test_processor_time_is_limited_even_if_nobody_waits():
    """Without the limit, the test itself runs out of time."""
    assert attack("while True: pass", seconds=86_400) == [None]


def test_memory_is_limited_and_state_survives_it():
    text, after = attack(
        "kept = 7; filled = []\nwhile True: filled.append(bytearray(10**7))", then="len(filled) * 0 + kept"
    )
    assert "MemoryError" in text and after == "7\n"


def test_pages_of_the_machine_cannot_be_taken_out_of_use():
    """Root may poison memory for every process with madvise; the address is nobody's, so that a test does no harm."""
    for advice in (100, 101, 2**32 + 100):  # MADV_HWPOISON, MADV_SOFT_OFFLINE
        code = "c = ctypes.CDLL(None, use_errno=True)\nc.madvise(ctypes.c_void_p(2**40), ctypes.c_size_t(4096), "
        text, _ = attack(f"import ctypes\n{code}ctypes.c_long({advice})), ctypes.get_errno()")
        assert text == f"(-1, {errno.EPERM})\n"


@pytest.mark.parametrize("code", [
    "import os; os._exit(0)", "import ctypes; ctypes.string_at(0)", "import os; os.abort()",
])  # fmt: skip
def test_a_crash_costs_only_its_own_sandbox(code):
    async def run_two():
        first, second = await Sandbox.start(SMALL), await Sandbox.start(SMALL)
        await second.run("x = 1")
        with pytest.raises(GuestDied):
            await first.run(code)
        assert not first.is_open and (await second.run("x")).text == "1\n"
        second.close()

    asyncio.run(run_two())


def test_no_other_process_can_be_touched():
    victim = subprocess.Popen(["sleep", "60"])
    calls = (f"kill({victim.pid}, 9)", f"ptrace(16, {victim.pid}, 0, 0)", f"tgkill({victim.pid}, {victim.pid}, 15)")
    text, _ = attack("import ctypes; c = ctypes.CDLL(None)\n" + "\n".join(f"print(c.{call})" for call in calls))
    assert text == "-1\n" * 3 and victim.poll() is None
    victim.kill()
    victim.wait()


LEAVE = """
import asyncio, time
from grpo.environments.sandbox.confinement import Limits
from grpo.environments.sandbox.sandbox import Sandbox
async def main():
    boxes = [await Sandbox.start(Limits()) for _ in range(3)]
    print(*[(await box.run("import os; os.getpid()")).text.strip() for box in boxes], flush=True)
    await asyncio.gather(*(box.run("while True: pass") for box in boxes))
asyncio.run(main())
"""


def test_guests_end_with_a_killed_engine():
    engine = subprocess.Popen([sys.executable, "-c", LEAVE], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    guests = [int(pid) for pid in engine.stdout.readline().split()]
    assert len(guests) == 3 and all(map(is_alive, guests))
    os.kill(engine.pid, signal.SIGKILL)
    engine.wait()
    wait_until(lambda: not any(map(is_alive, guests)), "they outlived the engine", 60)


CHECK = """
import asyncio, os
from grpo.environments.sandbox.confinement import Limits
from grpo.environments.sandbox.sandbox import find_escapes
status = open("/proc/self/status").read()
print(os.geteuid(), int(status.partition("CapEff:")[2].split()[0], 16), asyncio.run(find_escapes(Limits())))
"""


WITHOUT_LANDLOCK = """
import asyncio, ctypes
from grpo.environments.environment import load
library = ctypes.CDLL("libseccomp.so.2")
library.seccomp_init.restype = ctypes.c_void_p
rules = ctypes.c_void_p(library.seccomp_init(0x7FFF0000))
assert not library.seccomp_rule_add_array(rules, 0x00050000 | 38, 444, 0, None)  # no such call, as on an old kernel
assert not library.seccomp_load(rules)
load("python").check()
"""


def test_a_machine_without_landlock_is_refused_with_a_remedy():
    done = subprocess.run([sys.executable, "-c", WITHOUT_LANDLOCK], capture_output=True, text=True, cwd=ROOT)
    assert "Landlock" in done.stderr
    assert "Linux 5.13" in done.stderr


def test_an_ordinary_user_has_the_same_sandbox():
    """A user without any capability. In the namespace it is user 1000; outside it may be root's files it can read."""
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*user, "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are off")
    done = subprocess.run([*user, sys.executable, "-c", CHECK], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "1000 0 []\n", done.stderr
