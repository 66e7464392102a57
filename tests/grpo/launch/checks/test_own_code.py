"""What the user's own code does to its process is an answer, and does nothing to the launcher."""

import os
import sys
import time

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


def _interrupt() -> None:
    raise KeyboardInterrupt


def _print_bytes() -> None:
    os.write(2, b"\xff\n" * 9999 + b"bye \xfe\n")
    os._exit(3)


def _print_without_end() -> None:
    while True:
        os.write(1, b"x" * 9999)


def _leave_another() -> str:
    if not os.fork():
        os.setsid()  # outside of the group that is ended
        time.sleep(5)
        os._exit(0)
    return "left"


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: os._exit(0), "ended its process with code 0: nothing was printed"),
        (lambda: sys.exit(0), "ended its process with code 1: SystemExit: 0"),
        (_interrupt, "ended its process with code 1: KeyboardInterrupt"),
        (_print_bytes, r"ended its process with code 3: bye \\xfe"),
        (lambda: object(), "code 1: TypeError: Object of type object is not JSON serializable"),
    ],
)
def test_code_that_comes_to_no_value_is_named(call, what) -> None:
    with pytest.raises(NoAnswerError, match=what):
        call_apart(call, deadline=60)


@pytest.mark.parametrize("call", [_print_without_end, lambda: time.sleep(600)])
def test_code_that_does_not_return_is_named(call) -> None:
    with pytest.raises(NoAnswerError, match="did not return within"):
        call_apart(call, deadline=0.5)


def test_neither_a_copy_nor_a_process_that_lives_on_is_waited_for() -> None:
    assert call_apart(lambda: bool(os.fork()) or "both answer") is True
    assert call_apart(_leave_another, deadline=4.0) == "left"
