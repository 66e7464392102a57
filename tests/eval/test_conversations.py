"""The evaluation of a model behind an API, in the environments that training uses."""

import json

import pytest

from eval import conversations, harness
from eval.compare import compare_evaluations, read_grades
from grpo.rollout.multi_turn import retrieval
from grpo.stack.problem import UserError
from tests.grpo.rollout.multi_turn.scripted import make_call
from tests.reward.recorder import Answer, Recorder, Seen, make_redirector


class StandInAPI:
    """A stand-in for a model behind the OpenAI protocol: searches, reads what it found, then answers."""

    def __init__(self):
        self.seen, self.thinking, self.answer, self.failing, self.url = [], {}, "", "", ""

    def __call__(self, request: Seen) -> Answer:
        self.seen.append(asked := json.loads(request.body))
        results = [message["content"] for message in asked["messages"] if message["role"] == "tool"]
        message = {"role": "assistant", "content": None, **self.thinking}
        if not results:
            message["tool_calls"] = [
                make_call("search", {"query": "bridges"}, "x1"),
                make_call("read", {"document": 1}, "x2"),
            ]
        else:
            message["content"] = self.answer or ("\\boxed{417}" if "417" in "".join(results) else "unknown")
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if not results else "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        body = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        status = 400 if asked["messages"][0]["content"] == self.failing else 200
        return Answer(status, json.dumps(body).encode(), (("Content-Type", "application/json"),))


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model = StandInAPI()
    with Recorder(model) as server:
        model.url = f"{server.url}/v1"
        yield model


def test_the_same_environment_evaluates_a_model_behind_an_api(api, tmp_path, monkeypatch, capsys):
    (library := tmp_path / "library").mkdir()
    (library / "rivers.txt").write_text("The longest river is the Ona. It has 417 bridges, built in stone.")
    monkeypatch.setenv(retrieval.VARIABLE, "")
    monkeypatch.delenv(retrieval.VARIABLE)  # and back to what it was at the end
    monkeypatch.setenv("LIBRARY", str(library))
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text('{"id": "b", "prompt": "How many bridges?", "label": "417"}\n')
    command = ["--environment", "retrieval", "--data", str(data), "--base-url", api.url, "--out", str(out)]
    command += ["--n", "3", "--model", "m"]
    monkeypatch.delenv("OPENAI_API_KEY")
    assert conversations.main(command) == 2 and not api.seen
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert conversations.main(command) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["exact_match"] == 1 and result["samples"] == 3 and result["ci_low"] is not None
    assert result["means"]["reward"] == result["means"]["ended_by_turns"] + 1 == 1 and result["response_length"] == 10
    assert "turns                    2" in capsys.readouterr().out
    for record in read_rows(out / "samples.jsonl"):
        assert record["ending"] == "done" and "417 bridges" in record["messages"][3]["content"]
    assert {tool["function"]["name"] for tool in api.seen[0]["tools"]} == {"search", "read"}
    assert all("name" not in message for asked in api.seen for message in asked["messages"])
    asked = len(api.seen)
    assert conversations.main(command) == 0 and len(api.seen) == asked
    assert conversations.main([*command, "--turns", "3"]) == 2
    assert "turns was 8, is 3" in capsys.readouterr().err


def test_the_thinking_between_tool_calls_goes_back_to_a_server_that_names_it_reasoning(api, tmp_path):
    for name, sent in (("reasoning", ["hm"]), ("reasoning_content", [])):
        api.seen, api.thinking = [], {name: "hm"}
        assert conversations.main(make_command(api, tmp_path, name)) == 0
        assert [message.get("reasoning") for message in api.seen[1]["messages"] if "reasoning" in message] == sent
        (record,) = read_rows(tmp_path / name / "samples.jsonl")
        thought = [message.get("reasoning_content") for message in record["messages"] if message["role"] == "assistant"]
        assert thought == ["hm", "hm"]


def test_what_the_api_did_not_answer_is_asked_again_and_the_rest_is_kept(api, tmp_path, capsys):
    command = make_command(api, tmp_path, "out", prompts=("one", "two", "three"))
    api.failing = "two"
    assert conversations.main(command) == 1
    said = capsys.readouterr().err
    assert "no answer in conversation 0 of two: BadRequestError" in said and "the same command continues" in said
    assert {row["id"] for row in read_rows(tmp_path / "out" / "samples.jsonl")} == {"one", "three"}
    assert not (tmp_path / "out" / "result.json").exists()
    api.failing, api.seen = "", []
    assert conversations.main(command) == 0
    assert {asked["messages"][0]["content"] for asked in api.seen} == {"two"}
    assert [row["id"] for row in read_rows(tmp_path / "out" / "grades.jsonl")] == ["one", "two", "three"]


def test_two_evaluations_of_conversations_are_compared(api, tmp_path):
    for name, answer in (("a", "unknown"), ("b", "\\boxed{417}")):
        api.answer = answer
        assert conversations.main(make_command(api, tmp_path, name, prompts=("one", "two"))) == 0
    result = compare_evaluations(*(read_grades(tmp_path / name) for name in "ab"))
    assert (result["a"], result["b"], result["better"]) == (0.0, 1.0, 2)


def make_command(api, folder, out, prompts=("one",)):
    """Return the command line of conversations in an environment with a tool."""
    (file := folder / "asking.py").write_text(ASKING)
    (data := folder / "data.jsonl").write_text(
        "".join(json.dumps({"id": prompt, "prompt": prompt, "label": "417"}) + "\n" for prompt in prompts)
    )
    return ["--environment", str(file), "--data", str(data), "--base-url", api.url, "--model", "m", "--out",
            str(folder / out)]  # fmt: skip


def read_rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


ASKING = """
from grpo.rollout.multi_turn import environment

class Environment(environment.Environment):
    async def call(self, name, arguments):
        return "nothing"

    async def score(self, messages, ending):
        correct = float(self.label in messages[-1]["content"])
        return environment.Score(correct, correct)
"""


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_get_neither_key_nor_messages(tmp_path, monkeypatch, capsys, status):
    (file := tmp_path / "failing.py").write_text(FAILING)
    (data := tmp_path / "data.jsonl").write_text('{"id": "a", "prompt": "q", "label": "fine"}\n')
    monkeypatch.setenv("OPENAI_API_KEY", key := "a-key-of-the-user")
    with Recorder() as foreign, make_redirector(status, f"http://{key}@{foreign.host}") as server:
        command = ["--environment", str(file), "--data", str(data), "--base-url", server.url, "--model", "m"]
        assert conversations.main([*command, "--out", str(tmp_path / "out")]) == 1
        assert foreign.seen == [] and len(server.seen) == 1
    text = capsys.readouterr().err
    said = f"redirects ({status}) to the host {foreign.host}; redirects are not followed: set --base-url"
    assert said in text and key not in text


FAILING = """
from grpo.rollout.multi_turn import environment

class Environment(environment.Environment):
    def __init__(self, prompt, label):
        super().__init__(prompt, label)
        if label == "unmade":
            raise ValueError(label)

    async def start(self):
        return [None] if self.label == "unsaid" else await super().start()

    async def score(self, messages, ending):
        if self.label == "edited":
            messages.append({"role": "user", "content": {"what no file can hold"}})
        if self.label == "unscored":
            raise KeyError("gold")
        return environment.Score(None if self.label == "unrated" else 0.5, 1.0)
"""


def test_failing_environment_fails_only_its_own_conversation(api, tmp_path):
    (file := tmp_path / "failing.py").write_text(FAILING)
    labels = ["fine", "edited", "unmade", "unsaid", "unrated", "unscored"]
    (data := tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"id": label, "prompt": "q", "label": label}) + "\n" for label in labels)
    )
    command = ["--environment", str(file), "--data", str(data), "--base-url", api.url]
    command += ["--out", str(tmp_path / "out")]
    assert conversations.main([*command, "--model", "m", "--turns", "1"]) == 1
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["samples"], result["ungraded"], result["n"], result["problems"]) == (6, 4, 2, 6)
    assert result["means"]["reward"] == 0.5 and result["means"]["ended_by_error"] == pytest.approx(4 / 6)
    records = sorted(read_rows(tmp_path / "out" / "samples.jsonl"), key=lambda row: labels.index(row["id"]))
    for record, wrong in zip(records, [None, None, "constructor", "start", "score", "score"], strict=True):
        assert record["reward"] == (None if wrong else 0.5) and (record["ending"] == "error") == bool(wrong)
        assert wrong in record["error"] if wrong else "error" not in record
    assert "what no file can hold" in records[1]["messages"][-1]
    assert len(api.seen) == 4, "no turn of what could not begin"


@pytest.mark.parametrize(
    ("check", "what"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("__import__('os')._exit(0)", "nothing was printed")],
)
def test_an_environment_whose_check_fails_is_refused_by_name(tmp_path, check, what):
    (own := tmp_path / "own.py").write_text(
        "from grpo.rollout.multi_turn import environment\n\nclass Environment(environment.Environment):\n"
        f"    @classmethod\n    def check(cls):\n        {check}\n"
        "    async def score(self, messages, ending):\n        ...\n"
    )
    with pytest.raises(UserError, match=f"own.py ended its process with code .: {what}"):
        harness.load_environment(str(own))
