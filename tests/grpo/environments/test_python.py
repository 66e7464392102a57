"""The environment with a code tool."""

import asyncio

import pytest

from grpo.environments.environment import ToolError, load
from tests.grpo.environments.scripted import Spoken, make_call, talk

Python = load("python")


def ask(*codes, environment=None, arguments=None):
    """Return what each code returns in one conversation, or its ToolError."""

    async def ask_all():
        here = environment or Python("q", "1")
        said = []
        for code in codes:
            try:
                said.append(await here.call("python", {"code": code} if arguments is None else arguments))
            except ToolError as error:
                said.append(error)
        await here.close()
        return said

    return asyncio.run(ask_all())


def test_variables_stay_between_calls_and_the_last_expression_is_shown():
    assert ask("x = 6", "def f(y):\n    return x * y", "f(7)", "print(f(1))\nNone", "x; x == 6") == [
        "[no output]", "[no output]", "42\n", "6\n", "True\n",
    ]  # fmt: skip


def test_an_error_is_shown_as_python_shows_it_and_the_code_before_it_counts():
    (first, second) = ask("x = 1\nprint('before')\n1 / 0", "x")
    assert first == (
        "before\nTraceback (most recent call last):\n"
        '  File "<call 1>", line 3, in <module>\n    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero\n'
    )
    assert second == "1\n"
    assert "SyntaxError" in ask("1 +")[0]
    for arguments in ({}, {"code": 7}, {"code": None}):
        assert "python needs code" in str(ask("", arguments=arguments)[0])


def test_equal_code_gives_equal_output_in_every_rollout():
    code = "import random, numpy\nrandom.random(), numpy.random.rand(), hash('text'), list({'a', 'b', 'c'})"
    assert ask(code) == ask(code)
    code = "import sympy, numpy\nsympy.nextprime(10**6), int(numpy.linalg.det(numpy.eye(3) * 2).round())"
    assert ask(code) == ["(1000003, 8)\n"]


def test_a_lost_interpreter_is_replaced_and_the_model_is_told():
    died, after, later = ask("x = 1; import os; os._exit(1)", "2", "3")
    assert isinstance(died, ToolError) and "interpreter ended" in str(died)
    assert after == "[the variables of earlier calls are lost]\n2\n" and later == "3\n"


def test_a_call_beyond_its_deadline_is_an_observation_and_the_next_one_runs():
    calls = [
        {"tool_calls": [make_call("python", {"code": code})]} for code in ("x = 1", "while True: pass", "'x' in dir()")
    ]
    environment = Python("q", "1")
    outcome = talk(Spoken(*calls, {"content": "\\boxed{1}"}), environment, tool_seconds=5)
    heard = [message["content"] for message in outcome.messages if message["role"] == "tool"]
    assert heard[1] == "error: python took more than 5 seconds"
    assert heard[2] == "[the variables of earlier calls are lost]\nFalse\n"
    score = asyncio.run(environment.score(outcome.messages, outcome.ending))
    assert score.logs["interpreters_lost"] == 1 and score.logs["code_errors"] == 0


def test_the_calls_of_a_turn_run_in_order():
    calls = [make_call("python", {"code": code}) for code in ("x = 1", "x += 1; x", "x += 1; x")]
    outcome = talk(Spoken({"tool_calls": calls}, {"content": "done"}), Python("q", "1"))
    assert [message["content"] for message in outcome.messages[3:6]] == ["[no output]", "2\n", "3\n"]


@pytest.mark.parametrize(
    ("content", "label", "value"),
    [("\\boxed{33}", '{"answer": "033"}', 1.0), ("\\boxed{30+3}", "33", 0.0), ("\\boxed{31+2}", "33", 1.0)],
)  # the second is copied
def test_the_score_is_that_of_single_answers(content, label, value):
    outcome = talk(Spoken({"content": content}), environment := Python("What is 30 + 3?", label))
    score = asyncio.run(environment.score(outcome.messages, outcome.ending))
    assert (score.reward, score.score, score.logs["correct"], score.logs["answered"]) == (value, value, value, 1.0)
