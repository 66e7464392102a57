"""Confines a guest process before it runs a model's code. Needs no privileges, and confines root too.

- seccomp, through libseccomp: only the listed system calls. No network, no other process or thread, no signal, and no
  file opened for writing. Killing one process therefore ends everything.
- Landlock: files can be opened only below the folders of Python's library.
- Limits of memory, of processor time, and of open files.
"""

import ctypes
import errno
import os
import resource
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9

# Calls that compute, read open files, and allocate memory.
CALLS = (
    *("read", "pread64", "write", "close", "lseek", "fstat", "newfstatat", "statx", "stat", "lstat", "getdents64"),
    *("brk", "mmap", "munmap", "mremap", "mprotect", "futex"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall"),
    *("clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "select", "pselect6"),
    *("getpid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getcwd", "getrusage", "getrandom"),
    *("uname", "sched_getaffinity", "sched_yield", "exit", "exit_group"),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_LESS, _MASKED_EQ = 2, 7
_POISON = 100  # from this advice on, madvise takes pages of memory away from the whole machine, if root asks

# The numbers of Landlock's calls and rights are the same on all processors.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _PATH_BENEATH = 444, 445, 446, 1
_READ_FILE, _READ_DIR, _ALL_RIGHTS = 1 << 2, 1 << 3, (1 << 13) - 1
_SHARED_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
_FILES = ("/etc/ld.so.cache", "/dev/null", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


class Unconfined(Exception):
    """The machine cannot confine a process. The arguments are what is missing, and the remedy."""


@dataclass(frozen=True)
class Limits:
    """The limits of a guest.

    Attributes:
        memory_mb: what its code may allocate, besides the interpreter and its libraries.
        cpu_seconds: processor time of all its calls together.
        output_chars: of one call; the middle of a longer output is left out.
    """

    memory_mb: int = 1024
    cpu_seconds: int = 120
    output_chars: int = 4000


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def confine(limits: Limits) -> None:
    """Confine this process for good. Raises Unconfined if the machine lacks what this needs."""
    _set_limits(limits)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _restrict_files(readable_paths())
    _restrict_calls()


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. If that came before, no code comes through the socket."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def readable_paths() -> list[str]:
    """Return the folders and files that a guest may read: Python's library, its packages, and shared libraries."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    shared = sysconfig.get_config_var("LIBDIR")
    return [
        path for path in dict.fromkeys([*paths, shared, *_SHARED_LIBRARIES, *_FILES]) if path and os.path.exists(path)
    ]


def _set_limits(limits: Limits) -> None:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, size + limits.memory_mb * 2**20),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise Unconfined(f"prctl({option}) failed ({_reason()})", "allow it in the container's seccomp profile")


def _restrict_files(paths: Iterable[str]) -> None:
    """Leave this process only read access below paths, by Landlock."""
    rights = ctypes.c_uint64(_ALL_RIGHTS)
    ruleset = _libc.syscall(_CREATE_RULESET, ctypes.byref(rights), ctypes.sizeof(rights), 0)
    if ruleset < 0:
        raise Unconfined(
            f"Landlock is not available ({_reason()})",
            "use Linux 5.13 or later with `landlock` in the kernel's `lsm=` list; in a container, use a seccomp "
            "profile that allows it, as Docker 23's does",
        )
    for path in paths:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = _PathBeneath(_READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE, folder)
        failed = _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(folder)
        if failed:
            raise Unconfined(f"Landlock refuses a rule for {path} ({_reason()})", "report this")
    if _libc.syscall(_RESTRICT_SELF, ruleset, 0):
        raise Unconfined(f"Landlock cannot restrict a process ({_reason()})", "allow it in the container's profile")
    os.close(ruleset)


def _restrict_calls() -> None:
    """Refuse all system calls but CALLS, opening files for reading, and madvise calls that affect only this process."""
    library = seccomp()
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(_REFUSE))
    for name in CALLS:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # some processors lack the older calls
            _check(library.seccomp_rule_add_array(rules, _ALLOW, number, 0, None))
    for name, third in (
        ("openat", _Comparison(2, _MASKED_EQ, _WRITING, 0)),
        ("madvise", _Comparison(2, _LESS, _POISON, 0)),
    ):
        number = library.seccomp_syscall_resolve_name(name.encode())
        _check(library.seccomp_rule_add_array(rules, _ALLOW, number, 1, ctypes.byref(third)))
    _check(library.seccomp_load(rules))


def seccomp() -> ctypes.CDLL:
    """Return libseccomp."""
    try:
        return ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        raise Unconfined(f"libseccomp is missing ({error})", "install it (apt install libseccomp2)") from None


def _check(result: int) -> None:
    if result:
        raise Unconfined(
            f"seccomp refuses a filter ({os.strerror(-result)})", "allow seccomp in the container's profile"
        )


def _reason() -> str:
    return os.strerror(ctypes.get_errno())
