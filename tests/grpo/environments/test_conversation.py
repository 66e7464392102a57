"""The loop of a conversation under its limits, and the faults of an environment, which cost its own rollout at most."""

import asyncio
import math

import pytest

from grpo.environments import conversation
from grpo.environments.conversation import play
from grpo.environments.environment import Score, ToolError
from grpo.rollout.multi_turn import roll_out
from tests.grpo.environments.scripted import LIMITS, Library, Spoken, make_call, roll_out_script, talk

SOON = {"tool_seconds": 0.3, "score_seconds": 0.3, "seconds": 0.6}
SEARCH = {"tool_calls": [make_call("search", {"query": "x"})]}
ANSWER = "<|channel|>final<|message|>42<|return|>"


class Dead(Spoken):
    async def respond(self, messages, tools):
        raise self.messages[0]


def limits(**changes):
    return conversation.RolloutLimits(**{**vars(LIMITS), **changes})


def test_a_tool_that_fails_or_hangs_is_an_observation_and_the_others_answer(caplog):
    class Broken(Library):
        async def call(self, name, arguments):
            if name == "hang":
                await asyncio.Event().wait()
            if name == "surrogate":
                raise ToolError("a\ud800")
            return "\ud800" + str(1 / arguments["by"])

    calls = [make_call("divide", {"by": 0}, "a"), make_call("hang", {}, "b"), make_call("divide", {"by": 2}, "c")]
    calls.append(make_call("surrogate", {}, "d"))
    outcome = talk(Spoken({"tool_calls": calls}, {"content": "ok"}), Broken(), tool_seconds=0.2)
    heard = [message["content"] for message in outcome.messages if message["role"] == "tool"]
    assert heard == ["error: divide failed", "error: hang took more than 0.2 seconds", "?0.5", "error: a?"]
    assert outcome.errors == 3 and "ZeroDivisionError" in caplog.text


def test_the_calls_of_a_turn_run_at_once():
    together = asyncio.Barrier(10)

    class Waiting(Library):
        async def call(self, name, arguments):
            await together.wait()
            return "x"

    calls = [make_call("a", {}, str(i)) for i in range(10)]
    outcome = talk(Spoken({"tool_calls": calls}, {"content": "ok"}), Waiting(), tool_seconds=60.0)
    assert outcome.errors == 0, "no call waits for another"


def test_limits_of_turns_and_time_end_a_rollout():
    outcome = talk(Spoken(SEARCH), Library(), turns=3)
    assert (outcome.ending, outcome.turns, outcome.calls) == ("turns", 3, 3)
    outcome = talk(Spoken(SEARCH, seconds=0.1), Library(), turns=99, seconds=0.25)
    assert outcome.ending == "time" and 1 <= outcome.turns <= 2
    assert outcome.logs()["ended_by_time"] == 1 and set(outcome.logs()) == set(talk(Spoken({}), Library()).logs())


def test_time_out_during_sampling_keeps_earlier_turns(monkeypatch):
    call = " to=functions.search<|channel|>commentary json<|message|>{}<|call|>"
    monkeypatch.setitem(roll_out_script.__globals__, "LIMITS", limits(turns=99, seconds=0.4))
    _, engine, _, response = roll_out_script([call], seconds=0.15)
    assert not response["truncated"] and response["extra_logs"]["ended_by_time"] == 1  # by no limit on tokens
    assert 1 <= len(response["action_ranges"]) == len(engine.calls) <= 2
    assert response["observation_tokens"] == response["engine"]["tokens"]


@pytest.mark.parametrize("error", [RuntimeError("the engine is dead"), TimeoutError("of the engine")])
def test_a_policys_error_is_raised_to_the_caller_and_the_environment_is_closed(error):
    closed = []

    class Tidy(Library):
        async def close(self):
            closed.append(self)

    with pytest.raises(type(error), match="engine"):
        asyncio.run(play(Tidy, Dead(error), LIMITS))
    assert len(closed) == 1


class Driving(Library):
    """Asks for turns itself, at most `most`."""

    most = 9

    async def drive(self, turn):
        messages = await self.start()
        for _ in range(self.most):
            message, _ = await turn(messages, [])
            calls = message.get("tool_calls") or []
            messages = [*messages, message, *({"role": "tool", "content": "mine"} for _ in calls)]
            if not calls:
                return


def test_an_environment_may_have_a_loop_of_its_own():
    outcome = talk(Spoken(SEARCH, {"content": "x"}), Driving())
    assert [message["content"] for message in outcome.messages] == ["where?", "", "mine", "x"]
    assert (outcome.ending, outcome.turns, outcome.calls, outcome.errors) == ("done", 2, 1, 0)
    outcome = talk(Spoken(SEARCH), Driving(), turns=3)  # it does not heed the end
    assert (outcome.ending, outcome.turns) == ("error", 3) and "ContextFull" in outcome.fault
    with pytest.raises(RuntimeError, match="engine"):
        talk(Dead(RuntimeError("the engine is dead")), Driving())


def raise_error(*_):
    raise KeyError("gold")


def answer(value):
    """Return a method that returns a value, or raises an error."""

    async def method(*_):
        if isinstance(value, BaseException):
            raise value
        return value

    return method


async def hang(*_):
    await asyncio.sleep(3600)


fail, exit_process = answer(KeyError("gold")), answer(SystemExit(2))  # as a parser of arguments does
say_nonsense, say_nothing = answer("nonsense"), answer([])
say_no_unicode = answer([{"role": "user", "content": "\ud800"}])
give_nan, give_too_much = answer(Score(math.nan, 0.0)), answer(Score(1.0, 5.0))
UNKNOWN = " to=functions.find<|channel|>commentary json<|message|>{}<|call|>"
NO_JSON = " to=functions.search<|channel|>commentary json<|message|>{<|call|>"
GOOD = ' to=functions.search<|channel|>commentary json<|message|>{"query": "x"}<|call|>'
# Of each metric that counts faults: a method's name and what stands for it, or what the model says. A fault that ends
# the rollout costs its reward.
FAULTS = {
    "tool_errors": [
        UNKNOWN, NO_JSON, *(("call", method) for method in (fail, exit_process, say_nothing, hang))
    ],
    "ended_by_error": [
        ("__init__", raise_error), ("tools", property(raise_error)),
        *((name, method) for name in ("start", "reply")
          for method in (fail, raise_error, exit_process, say_nonsense, say_no_unicode, say_nothing)),
        *(("score", method) for method in (fail, exit_process, say_nonsense, give_nan, give_too_much, hang)),
    ],
    "close_failed": [("close", method) for method in (fail, exit_process, hang)],
}  # fmt: skip


@pytest.mark.parametrize(("metric", "number"), [(name, i) for name in FAULTS for i in range(len(FAULTS[name]))])
def test_a_fault_is_counted_and_costs_its_own_rollout_at_most(metric, number, monkeypatch, caplog):
    """In one of two concurrent rollouts, with the template and the token accounts of training."""
    monkeypatch.setattr(conversation, "CLOSE_SECONDS", 0.3)
    monkeypatch.setattr(conversation, "logged_errors", set())
    injected = FAULTS[metric][number]
    said, replaced = (injected, {}) if isinstance(injected, str) else (GOOD, dict([injected]))
    together = []

    async def roll_out_both(make, policy, _, max_rows):
        one = roll_out(type("Faulty", (Library,), replaced), policy, limits(**SOON), max_rows)
        both = await asyncio.gather(one, play(Library, Spoken(SEARCH, {"content": "x"}), limits(**SOON)))
        together.extend(both)
        return both[0]

    monkeypatch.setitem(roll_out_script.__globals__, "roll_out", roll_out_both)
    roll_out_script([said, ANSWER])
    (outcome, response), (other, other_score) = together
    assert response["extra_logs"][metric] == 1
    assert math.isnan(response["reward"]) == (metric == "ended_by_error") == (outcome.ending == "error")
    assert (other.ending, other_score.reward, other.logs()[metric]) == ("done", 1.0, 0)
    assert metric == "tool_errors" or caplog.records


def test_scores_of_any_number_type_become_floats():
    numpy = pytest.importorskip("numpy")

    class Counted(Library):
        async def score(self, messages, ending):
            return Score(numpy.float32(0.5), True, {"steps": 3, "seconds": math.nan})

    _, score = asyncio.run(play(Counted, Spoken({}), LIMITS))
    values = [score.reward, score.score, score.logs["steps"]]
    assert values == [0.5, 1.0, 3.0] and all(type(value) is float for value in values)
    assert math.isnan(score.logs["seconds"]), "a log that a rollout does not have"
