"""The loop and the retrieval environment, with the same policy's words from an engine and from an API."""

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from eval import conversations
from grpo.multi_turn import conversation, retrieval
from grpo.multi_turn.conversation import Limits, converse, made, scored
from grpo.multi_turn.environment import Environment, Score, SetupError, load
from grpo.multi_turn.rollout import EnginePolicy, roll_out
from grpo.multi_turn.settings import Settings
from grpo.multi_turn.templates import template_for
from tests.grpo.multi_turn.dialects import TOKENIZERS
from tests.grpo.multi_turn.scripted import Library, ScriptedEngine, params

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


def call(name, arguments, id="1"):
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


class Spoken:
    """A policy of messages that are given."""

    def __init__(self, *messages, seconds=0.0):
        self.messages, self.seconds = list(messages), seconds

    async def respond(self, messages, tools):
        await asyncio.sleep(self.seconds)
        said = self.messages.pop(0) if len(self.messages) > 1 else self.messages[0]
        return {"role": "assistant", "content": "", **said}, False


def talk(policy, environment, **limits):
    return asyncio.run(converse(environment, policy, Limits(**limits)))


def test_a_library_is_searched_and_read(corpus):
    calls = [
        call("search", {"query": "how many bridges?"}, "a"),
        call("read", {"document": 3}, "b"),
        call("read", {"document": 3, "offset": 2000}, "c"),
    ]
    policy = Spoken({"tool_calls": calls}, {"content": "It has \\boxed{417}."})
    environment = retrieval.Environment("How many bridges?", '{"answer": "417", "split": "train"}')
    outcome = talk(policy, environment)
    found, page, rest = (message["content"] for message in outcome.messages if message["role"] == "tool")
    assert found.splitlines()[0].startswith("[2] rivers: ") and "417 bridges" in found
    assert len(found) < 400  # an excerpt, not the document
    assert page.startswith("towns\nThe town") and page.endswith("characters more]") and "tower" not in page
    assert rest.endswith("At its end stands a tower.")
    assert [message["tool_call_id"] for message in outcome.messages if message["role"] == "tool"] == ["a", "b", "c"]
    assert (outcome.ending, outcome.turns, outcome.calls, outcome.errors) == ("done", 2, 3, 0)
    assert asyncio.run(scored(environment, outcome)) == Score(1.0, 1.0, {"correct": 1.0, "answered": 1.0})


@pytest.mark.parametrize("wrong, heard", [
    (call("search", "{"), "no JSON"), (call("search", "[]"), "no JSON object"), (call("", "x"), "no JSON"),
    (call("find", {}), "no tool 'find'"), (call("search", {}), "needs a query"),
    (call("search", {"query": "a", "count": 99}), "from 1 to 10"), (call("read", {"document": "x"}), "whole number"),
    (call("read", {"document": 9}), "no document 9"), (call("read", {"document": 10**30}), "no document"),
    (call("search", {"query": 'NEAR("a" OR* ) AND: -'}), None), (call("search", {"query": "?!"}), "nothing was found"),
])  # fmt: skip
def test_what_a_tool_cannot_do_is_an_observation(corpus, wrong, heard):
    outcome = talk(Spoken({"tool_calls": [wrong]}, {"content": "so be it"}), retrieval.Environment("q", "1"))
    observed = outcome.messages[3]["content"]
    assert outcome.ending == "done" and outcome.errors == observed.startswith("error: ")
    assert heard is None or heard in observed


def test_a_tool_that_fails_or_hangs_is_an_observation_and_the_others_answer(caplog):
    class Broken(Library):
        async def call(self, name, arguments):
            if name == "hang":
                await asyncio.sleep(60)
            return str(1 / arguments["by"])

    calls = [call("divide", {"by": 0}, "a"), call("hang", {}, "b"), call("divide", {"by": 2}, "c")]
    started = time.monotonic()
    outcome = talk(Spoken({"tool_calls": calls}, {"content": "ok"}), Broken(), tool_seconds=0.2)
    assert time.monotonic() - started < 5
    heard = [message["content"] for message in outcome.messages if message["role"] == "tool"]
    assert heard == ["error: divide failed", "error: hang took more than 0.2 seconds", "0.5"]
    assert outcome.errors == 2 and "ZeroDivisionError" in caplog.text


def test_the_calls_of_a_turn_run_at_once():
    class Slow(Library):
        async def call(self, name, arguments):
            await asyncio.sleep(0.2)
            return "x"

    started = time.monotonic()
    talk(Spoken({"tool_calls": [call("a", {}, str(i)) for i in range(10)]}, {"content": "ok"}), Slow())
    assert time.monotonic() - started < 1


def test_limits_of_turns_and_time_end_a_rollout():
    endless = {"tool_calls": [call("search", {})]}
    outcome = talk(Spoken(endless), Library(), turns=3)
    assert (outcome.ending, outcome.turns, outcome.calls) == ("turns", 3, 3)
    outcome = talk(Spoken(endless, seconds=0.1), Library(), turns=99, seconds=0.25)
    assert outcome.ending == "time" and 1 <= outcome.turns <= 2
    assert outcome.logs()["ended_by_time"] == 1 and set(outcome.logs()) == set(talk(Spoken({}), Library()).logs())


def test_time_that_is_up_while_the_engine_samples_leaves_what_was_sampled_before():
    template = template_for(TOKENIZERS["qwen3"])
    text = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call><|im_end|>'
    engine = ScriptedEngine(template.codec, [text], seconds=0.15)
    policy = EnginePolicy(template, engine, params(), 4000)
    _, response = asyncio.run(roll_out(Library(), policy, Limits(turns=99, seconds=0.4), 4))
    assert not response["truncated"] and response["extra_logs"]["ended_by_time"] == 1  # by no limit on tokens
    assert 1 <= len(response["action_ranges"]) == len(engine.calls) <= 2
    assert response["observation_tokens"] == response["engine"]["tokens"]


def test_a_rollout_is_truncated_where_tokens_run_out():
    template = template_for(TOKENIZERS["qwen3"])
    for room, most, is_truncated in ((900, 200, False), (900, 1, True), (3, 200, True)):  # of the context, of a turn
        policy = EnginePolicy(template, ScriptedEngine(template.codec, ["42<|im_end|>"]), params(most), room)
        _, response = asyncio.run(roll_out(Library(), policy, Limits(), 4))
        assert response["truncated"] is is_truncated and response["extra_logs"]["ended_by_length"] == is_truncated


def test_an_environment_that_cannot_score_gives_no_reward(caplog):
    class Unsure(Library):
        async def score(self, messages, ending):
            raise KeyError("gold")

    score = asyncio.run(scored(Unsure(), talk(Spoken({"content": "x"}), Unsure())))
    assert score.reward != score.reward and "could not be scored" in caplog.text


@pytest.mark.parametrize("method", ["start", "reply"])
@pytest.mark.parametrize("error", [KeyError("gold"), TimeoutError("its own")])
def test_an_error_of_the_environment_ends_its_rollout_and_no_run(method, error, caplog):
    class Broken(Library):
        """Says nothing of what it has."""

    async def fail(*_):
        raise error

    setattr(Broken, method, fail)
    environment = Broken()
    outcome = talk(Spoken({"content": "x"}), environment)
    assert outcome.ending == "error" and outcome.logs()["ended_by_error"] == 1
    assert type(error).__name__ in caplog.text
    score = asyncio.run(scored(environment, outcome))
    assert score.reward != score.reward


class Unlucky(Library):
    """Cannot be made where the label is bad."""

    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        self.gold = int(label)


def test_an_error_in_the_constructor_is_one_of_the_environment(caplog):
    template = template_for(TOKENIZERS["qwen3"])
    engine = ScriptedEngine(template.codec, ["42<|im_end|>"])
    outcome, response = asyncio.run(
        roll_out(made(Unlucky, "q", "x"), EnginePolicy(template, engine, params(), 900), Limits(), 4)
    )
    assert outcome.ending == "error" and "its constructor failed (ValueError" in outcome.fault
    assert response["extra_logs"]["ended_by_error"] == 1 and response["reward"] != response["reward"]
    assert not engine.calls and not response["truncated"] and "self.gold = int" in caplog.text
    sound = made(Unlucky, "q", "7")
    outcome = talk(Spoken({"content": "x"}), sound)
    assert sound.gold == 7 and outcome.ending == "done" and not outcome.fault


def test_the_traceback_of_an_error_is_logged_once_and_each_error_has_a_line(caplog, monkeypatch):
    monkeypatch.setattr(conversation, "_seen", set())
    for label in ("x", "y", "x"):
        talk(Spoken({"content": "x"}), made(Unlucky, "q", label))
    assert caplog.text.count("Traceback") == 1 and len(caplog.records) == 3
    assert [label in record.getMessage() for record, label in zip(caplog.records, "xyx", strict=True)] == [True] * 3
    talk(Spoken({"content": "x"}), made(Unlucky, "q", None))  # another kind: a TypeError
    assert caplog.text.count("Traceback") == 2


@pytest.mark.parametrize("name, value", [
    ("tools", property(lambda self: 1 / 0)), ("tools", ["search"]), ("start", lambda self: "hello"),
    ("reply", lambda self, messages: "hello"), ("score", lambda self, messages, ending: 1.0),
])  # fmt: skip
def test_what_an_environment_may_not_return_is_an_error_of_it(name, value, caplog):
    class Wrong(Library):
        """Has something else there."""

    async def answer(*arguments):
        return value(*arguments)

    setattr(Wrong, name, value if name == "tools" else answer)
    environment = Wrong()
    outcome = talk(Spoken({"content": "x"}), environment)
    assert outcome.ending == ("done" if name == "score" else "error")
    score = asyncio.run(scored(environment, outcome))
    assert score.reward != score.reward and "no reward" in caplog.text


def test_a_message_that_the_template_cannot_hold_ends_its_rollout_and_no_run(caplog):
    class Odd(Library):
        async def reply(self, messages):
            return [{"role": "oracle", "content": "x"}]

    template = template_for(TOKENIZERS["qwen3"])
    policy = EnginePolicy(template, ScriptedEngine(template.codec, ["42<|im_end|>"]), params(), 900)
    outcome, response = asyncio.run(roll_out(Odd(), policy, Limits(), 4))
    assert outcome.ending == "error" and outcome.turns == 1 and response["reward"] != response["reward"]
    assert "oracle" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("the engine is dead"), TimeoutError("of the engine")])
def test_an_error_of_the_policy_is_the_callers(error):
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
    own = tmp_path / "own.py"
    for text, wrong in (("x = 1", "has no class Environment"), ("import nothing_there", "fails when loaded")):
        own.write_text(text)
        with pytest.raises(SetupError, match=wrong):
            load(str(own))
    with pytest.raises(SetupError, match=r"is no \.py file"):
        load("retrieve")
    monkeypatch.delenv(retrieval.VARIABLE, raising=False)
    with pytest.raises(SetupError, match="set LIBRARY"):
        load("retrieval").check()
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"title": "a"}\n')
    for path, wrong in (("empty", "holds no document"), ("bad.jsonl", "line 1"), ("gone", "is no folder")):
        monkeypatch.setenv(retrieval.VARIABLE, str(tmp_path / path))
        with pytest.raises(SetupError, match=wrong):
            load("retrieval").check()


def test_settings_come_from_variables():
    assert Settings.from_variables({"GRPO_ENVIRONMENT": "retrieval"}).limits == Limits()
    given = {"GRPO_ENVIRONMENT": "e", "GRPO_TURN_LIMIT": "3", "GRPO_TOOL_SECONDS": "0.5", "GRPO_MAX_BRANCHES": "0"}
    assert Settings.from_variables(given) == Settings("e", Limits(3, Limits.seconds, 0.5), 1)
    for name, value in (("TURN_LIMIT", "0"), ("ROLLOUT_SECONDS", "x"), ("TOOL_SECONDS", "-1"), ("MAX_BRANCHES", "-1")):
        with pytest.raises(SetupError, match=name):
            Settings.from_variables({"GRPO_ENVIRONMENT": "e", f"GRPO_{name}": value})
    with pytest.raises(SetupError, match="set ENVIRONMENT"):
        Settings.from_variables({})


class StandInAPI(BaseHTTPRequestHandler):
    """A stand-in for a model behind the OpenAI protocol: searches, reads what it found, then answers."""

    seen: ClassVar[list] = []

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(asked)
        results = [message["content"] for message in asked["messages"] if message["role"] == "tool"]
        message = {"role": "assistant", "content": None}
        if not results:
            message["tool_calls"] = [call("search", {"query": "bridges"}, "x1"), call("read", {"document": 2}, "x2")]
        else:
            message["content"] = "\\boxed{417}" if "417" in "".join(results) else "unknown"
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if not results else "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        body = json.dumps({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice],
                           "usage": usage}).encode()  # fmt: skip
        self.send_response(200 if asked["model"] == "m" else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture
def api():
    StandInAPI.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandInAPI)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_same_environment_evaluates_a_model_behind_an_api(api, corpus, tmp_path, monkeypatch, capsys):
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text('{"id": "b", "prompt": "How many bridges?", "label": "417"}\n')
    command = ["--environment", "retrieval", "--data", str(data), "--base-url", api, "--out", str(out), "--n", "3"]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert conversations.main([*command, "--model", "m"]) == 2 and not StandInAPI.seen
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert conversations.main([*command, "--model", "m"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["conversations"] == 3 and summary["correct"] == 1 and summary["tokens"] == 10
    records = [json.loads(line) for line in (out / "conversations.jsonl").read_text().splitlines()]
    assert all(record["ending"] == "done" and "417 bridges" in record["messages"][3]["content"] for record in records)
    assert {tool["function"]["name"] for tool in StandInAPI.seen[0]["tools"]} == {"search", "read"}
    assert all("name" not in message for asked in StandInAPI.seen for message in asked["messages"])
    assert conversations.main([*command, "--model", "m"]) == 2  # the folder is not empty
    assert "is not empty" in capsys.readouterr().err
    command[-3] = str(tmp_path / "other")
    assert conversations.main([*command, "--model", "unknown"]) == 1
    assert json.loads((tmp_path / "other" / "summary.json").read_text())["failed"] == 3


def test_an_environment_that_fails_is_a_conversation_that_failed(api, tmp_path, monkeypatch):
    (own := tmp_path / "own.py").write_text(
        "from grpo.multi_turn import environment\n\n"
        "class Environment(environment.Environment):\n"
        "    def __init__(self, prompt, label):\n"
        "        super().__init__(prompt, label)\n"
        "        self.gold = float(label)\n\n"
        "    async def score(self, messages, ending):\n"
        "        return environment.Score(1 / self.gold, 1.0)\n"
    )
    (data := tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"id": label, "prompt": "q", "label": label}) + "\n" for label in ("2", "two", "0"))
    )
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    command = ["--environment", str(own), "--data", str(data), "--base-url", api, "--out", str(tmp_path / "out")]
    assert conversations.main([*command, "--model", "m", "--turns", "1"]) == 1
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["conversations"] == 3 and summary["failed"] == 2  # could not be made, could not be scored
    assert summary["reward"] == 0.5 and summary["ended_by_error"] == pytest.approx(1 / 3)
    fine, unmade, unscored = map(json.loads, (tmp_path / "out" / "conversations.jsonl").read_text().splitlines())
    assert fine["reward"] == 0.5 and "error" not in fine and unscored["reward"] is None
    assert unmade["ending"] == "error" and unmade["reward"] is None and "could not convert" in unmade["error"]
    assert len(StandInAPI.seen) == 2
