"""The loop of a conversation under its limits, the retrieval environment, and how environments are set up."""

import asyncio

import pytest

from grpo.rollout.multi_turn import retrieval
from grpo.rollout.multi_turn.conversation import score_conversation
from grpo.rollout.multi_turn.environment import (
    Environment,
    Score,
    SetupError,
)
from grpo.rollout.multi_turn.environment_loading import load
from grpo.rollout.multi_turn.mixture import Member, Mixture
from grpo.rollout.multi_turn.rollout import EnginePolicy, roll_out
from grpo.rollout.multi_turn.settings import EnvironmentSettings, RolloutLimits
from grpo.rollout.multi_turn.templates import template_for
from grpo.stack.problem import UserError
from tests.grpo.rollout.multi_turn.dialects import TOKENIZERS
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, ScriptedEngine, Spoken, make_call, make_params, talk

TEXTS = {
    "rivers": "The longest river of the land is the Ona. It has 417 bridges, built in stone.",
    "mountains": "Snow lies on the peak of Kel all year. Goats climb there.",
    "towns": "The town of Arb lies by the river. " + "Its market is old. " * 200 + "At its end stands a tower.",
}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    for title, text in TEXTS.items():
        (tmp_path / f"{title}.txt").write_text(text)
    monkeypatch.setenv(retrieval.VARIABLE, str(tmp_path))
    return tmp_path


def test_a_library_is_searched_and_read(corpus):
    calls = [
        make_call("search", {"query": "how many bridges?"}, "a"),
        make_call("read", {"document": 3}, "b"),
        make_call("read", {"document": 3, "offset": 2000}, "c"),
    ]
    policy = Spoken({"tool_calls": calls}, {"content": "It has \\boxed{417}."})
    environment = retrieval.Environment("How many bridges?", '{"answer": "417", "split": "train"}')
    outcome = talk(policy, environment)
    excerpts, page, rest = (message["content"] for message in outcome.messages if message["role"] == "tool")
    assert excerpts.splitlines()[0].startswith("[2] rivers: ") and "417 bridges" in excerpts
    assert len(excerpts) < 400  # an excerpt, not the document
    assert page.startswith("towns\nThe town") and page.endswith("characters more]") and "tower" not in page
    assert rest.endswith("At its end stands a tower.")
    assert [message["tool_call_id"] for message in outcome.messages if message["role"] == "tool"] == ["a", "b", "c"]
    assert (outcome.ending, outcome.turns, outcome.calls, outcome.errors) == ("done", 2, 3, 0)
    assert asyncio.run(score_conversation(environment, outcome, 60)) == Score(
        1.0, 1.0, {"correct": 1.0, "answered": 1.0}
    )


@pytest.mark.parametrize("wrong, heard", [
    (make_call("search", "{"), "not JSON"), (make_call("search", "[]"), "not a JSON object"),
    (make_call("", "x"), "not JSON"), (make_call("find", {}), "no tool 'find'"),
    (make_call("search", {}), "needs a query"),
    (make_call("search", {"query": "a", "count": 99}), "from 1 to 10"),
    (make_call("read", {"document": "x"}), "whole number"), (make_call("read", {"document": 9}), "no document 9"),
    (make_call("read", {"document": 10**30}), "no document"),
    (make_call("search", {"query": 'NEAR("a" OR* ) AND: -'}), None),
    (make_call("search", {"query": "?!"}), "nothing was found"),
])  # fmt: skip
def test_unsupported_tool_call_is_an_observation(corpus, wrong, heard):
    outcome = talk(Spoken({"tool_calls": [wrong]}, {"content": "so be it"}), retrieval.Environment("q", "1"))
    observed = outcome.messages[3]["content"]
    assert outcome.ending == "done" and outcome.errors == observed.startswith("error: ")
    assert heard is None or heard in observed


def test_a_tool_that_fails_or_hangs_is_an_observation_and_the_others_answer(caplog):
    class Broken(Library):
        async def call(self, name, arguments):
            if name == "hang":
                await asyncio.Event().wait()
            return str(1 / arguments["by"])

    calls = [make_call("divide", {"by": 0}, "a"), make_call("hang", {}, "b"), make_call("divide", {"by": 2}, "c")]
    outcome = talk(Spoken({"tool_calls": calls}, {"content": "ok"}), Broken(), tool_seconds=0.2)
    heard = [message["content"] for message in outcome.messages if message["role"] == "tool"]
    assert heard == ["error: divide failed", "error: hang took more than 0.2 seconds", "0.5"]
    assert outcome.errors == 2 and "ZeroDivisionError" in caplog.text


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
    endless = {"tool_calls": [make_call("search", {})]}
    outcome = talk(Spoken(endless), Library(), turns=3)
    assert (outcome.ending, outcome.turns, outcome.calls) == ("turns", 3, 3)
    outcome = talk(Spoken(endless, seconds=0.1), Library(), turns=99, seconds=0.25)
    assert outcome.ending == "time" and 1 <= outcome.turns <= 2
    assert outcome.logs()["ended_by_time"] == 1 and set(outcome.logs()) == set(talk(Spoken({}), Library()).logs())


def test_time_out_during_sampling_keeps_earlier_turns():
    template = template_for(TOKENIZERS["qwen3"])
    text = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call><|im_end|>'
    engine = ScriptedEngine(template.codec, [text], seconds=0.15)
    policy = EnginePolicy(template, engine, make_params(), 4000)
    _, response = asyncio.run(
        roll_out(Library, policy, RolloutLimits(turns=99, seconds=0.4, tool_seconds=20, score_seconds=60), 4)
    )
    assert not response["truncated"] and response["extra_logs"]["ended_by_time"] == 1  # by no limit on tokens
    assert 1 <= len(response["action_ranges"]) == len(engine.calls) <= 2
    assert response["observation_tokens"] == response["engine"]["tokens"]


def test_rollout_is_truncated_when_tokens_run_out():
    template = template_for(TOKENIZERS["qwen3"])
    for room, most, is_truncated in ((900, 200, False), (900, 1, True), (3, 200, True)):  # of the context, of a turn
        policy = EnginePolicy(template, ScriptedEngine(template.codec, ["42<|im_end|>"]), make_params(most), room)
        _, response = asyncio.run(roll_out(Library, policy, LIMITS, 4))
        assert response["truncated"] is is_truncated and response["extra_logs"]["ended_by_length"] == is_truncated


@pytest.mark.parametrize("error", [RuntimeError("the engine is dead"), TimeoutError("of the engine")])
def test_policy_error_is_raised_to_the_caller(error):
    class Dead(Spoken):
        async def respond(self, messages, tools):
            raise error

    with pytest.raises(type(error), match="engine"):
        talk(Dead({}), Library())


@pytest.mark.parametrize(
    "ending, content, right",
    [("done", "\\boxed{7}", 1.0), ("done", "no idea", 0.0), ("length", "\\boxed{7", 0.0), ("turns", None, 0.0)],
)
def test_only_a_final_answer_is_rewarded(ending, content, right):
    last = {"role": "assistant", "content": content} if content else {"role": "tool", "content": "\\boxed{7}"}
    score = asyncio.run(retrieval.Environment("q", "7").score([last], ending))
    assert score.reward == score.logs["correct"] == right


def test_environments_are_loaded_by_name_or_file_and_refused_with_a_remedy(tmp_path, monkeypatch):
    assert issubclass(load("retrieval"), Environment)
    file = tmp_path / "file.py"
    begin = "from grpo.rollout.multi_turn import environment as e\nclass Environment(e.Environment):\n"
    for text, wrong in (
        ("x = 1", "has no class Environment"),
        ("import nothing_there", "cannot be imported .*: correct the file"),
        (begin + "    tools = ()", "no coroutine score"),
        (begin + "    def score(self, messages, ending): pass", "define `async def score"),
        (begin + "    async def score(self, *_): pass\n    def call(self, *_): pass", "no coroutine call"),
    ):
        file.write_text(text)
        with pytest.raises(SetupError, match=wrong):
            load(str(file))
    for name, wrong in (
        ("retrieve", r"is not an environment: name a \.py file"),
        (str(tmp_path / "gone.py"), "does not exist"),
    ):
        with pytest.raises(SetupError, match=wrong):
            load(name)
    monkeypatch.delenv(retrieval.VARIABLE, raising=False)
    with pytest.raises(SetupError, match="set LIBRARY"):
        load("retrieval").check()
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"title": "a"}\n')
    for path, wrong in (("empty", "contains no documents"), ("bad.jsonl", "line 1"), ("gone", "is neither a folder")):
        monkeypatch.setenv(retrieval.VARIABLE, str(tmp_path / path))
        with pytest.raises(SetupError, match=wrong):
            load("retrieval").check()


VARIABLES = {
    "TURN_LIMIT": ("3", "0"),
    "ROLLOUT_SECONDS": ("9", "x"),
    "TOOL_SECONDS": ("0.5", "-1"),
    "SCORE_SECONDS": ("4", "inf"),
    "MAX_BRANCHES": ("0", "-1"),
    "TEMPLATE": ("hub", "own"),
}


def test_settings_come_from_variables():
    environ = {"GRPO_ENVIRONMENT": "e"} | {f"GRPO_{name}": value for name, (value, _) in VARIABLES.items()}
    mixture = Mixture([Member("e", "e", 1.0)])
    settings = EnvironmentSettings(mixture, RolloutLimits(3, 9, 0.5, 4), 1, "hub")
    assert EnvironmentSettings.from_variables(environ) == settings
    for name, (_, wrong) in VARIABLES.items():
        with pytest.raises(UserError, match=f"{name} is '?{wrong}"):
            EnvironmentSettings.from_variables(environ | {f"GRPO_{name}": wrong})
    with pytest.raises(SetupError, match="set ENVIRONMENT"):
        EnvironmentSettings.from_variables({})


def test_an_environment_that_answers_calls_itself_still_does():
    class Own(Library):
        answers_calls = True

        async def reply(self, messages):
            calls = messages[-1].get("tool_calls") or []
            return [{"role": "tool", "tool_call_id": each["id"], "content": "mine"} for each in calls] or None

    outcome = talk(Spoken({"tool_calls": [make_call("search", {"query": "x"})]}, {"content": "x"}), Own())
    assert outcome.messages[2]["content"] == "mine" and (outcome.ending, outcome.turns) == ("done", 2)
