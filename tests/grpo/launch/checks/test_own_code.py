"""What the user's own code does to its process is an answer, and does nothing to the launcher."""

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from grpo.launch.checks.own_code import NoAnswerError, call_apart
from grpo.stack.problem import UserError


def test_a_value_and_the_calls_own_error_come_back() -> None:
    assert call_apart(lambda: {"printed": print("{"), "rows": [1, "a"]}) == {"printed": None, "rows": [1, "a"]}

    def refuse() -> None:
        raise UserError("what", "remedy")

    with pytest.raises(UserError, match="what: remedy") as refused:
        call_apart(refuse)
    assert not isinstance(refused.value, NoAnswerError)


def _run(code: str) -> Callable[[], object]:
    return lambda: exec(code, {"os": os, "sys": sys, "time": time})


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("os._exit(0)", "ended its process with code 0: nothing was printed"),
        ("sys.exit(0)", "ended its process with code 1: SystemExit: 0"),
        ("raise KeyboardInterrupt", "ended its process with code 1: KeyboardInterrupt"),
        (r"os.write(2, b'\xff\n' * 9999 + b'bye \xfe\n'); os._exit(3)", r"ended its process with code 3: bye \\xfe"),
        ("while True: os.write(1, b'x' * 9999)", "did not return within"),
        ("time.sleep(600)", "did not return within"),
    ],
)
def test_code_that_comes_to_no_value_is_named(code: str, what: str) -> None:
    with pytest.raises(NoAnswerError, match=what):
        call_apart(_run(code), deadline=0.5 if "did not" in what else 400)


def _leave_another() -> int:
    if not (pid := os.fork()):
        time.sleep(500)
        os._exit(0)
    os.setpgid(pid, pid)  # outside of the group that is ended
    return pid


def test_neither_a_copy_nor_a_process_that_lives_on_is_waited_for() -> None:
    assert call_apart(lambda: bool(os.fork()) or "both answer") is True
    os.kill(call_apart(_leave_another, deadline=400), signal.SIGKILL)  # it lives
