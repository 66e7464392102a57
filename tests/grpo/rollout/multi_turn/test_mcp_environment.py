"""Tools of an MCP server: a process of its own, over stdio."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from grpo.rollout.multi_turn.conversation import hold_conversation
from grpo.rollout.multi_turn.environment import Score, SetupError
from grpo.rollout.multi_turn.mcp_environment import McpEnvironment
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Spoken, make_call

SERVER = Path(__file__).with_name("mcp_server.py")


@pytest.fixture
def notebook(tmp_path):
    class Notebook(McpEnvironment):
        server = (sys.executable, str(SERVER), str(tmp_path))
        variables = {"NOTEBOOK": "1"}  # noqa: RUF012

        async def score(self, messages, ending):
            return Score(1.0, 1.0)

    return Notebook


def call_tools(kind, *turns):
    """Return the texts of the tools."""

    async def run():
        made = kind("Note it.", "")
        try:
            outcome = await hold_conversation(made, Spoken(*turns), LIMITS)
            return outcome, made.tools
        finally:
            await made.close()

    outcome, tools = asyncio.run(run())
    return [message["content"] for message in outcome.messages if message["role"] == "tool"], outcome, tools


def read_pids(folder):
    return [int(file.name) for file in folder.iterdir()]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_its_tools_are_called_and_its_state_lasts_for_one_rollout(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a secret")
    turns = [
        {"tool_calls": [make_call("note", {"text": "né"})]},
        {
            "tool_calls": [
                make_call("read", {"number": 1}),
                make_call("read", {"number": 5}, "2"),
                make_call("dance", {}, "3"),
            ]
        },
        {"tool_calls": [make_call("note", {"number": 1}), make_call("variables", {}, "2")]},
        {"content": "done"},
    ]
    said, outcome, tools = call_tools(notebook, *turns)
    assert said[:2] == ["1 notes", "né"] and "there is no note 5" in said[2]
    assert said[3] == "error: there is no tool dance" and said[4].startswith("error:") and "text" in said[4]
    assert "NOTEBOOK" in said[5].split() and "OPENAI_API_KEY" not in said[5]
    assert (outcome.ending, outcome.calls, outcome.errors) == ("done", 6, 3)
    read = next(tool for tool in tools if tool.name == "read")
    assert read.description == "Read a note, from 1." and read.parameters["required"] == ["number"]
    again, *_ = call_tools(notebook, {"tool_calls": [make_call("read", {"number": 1})]}, {"content": "done"})
    assert "there is no note 1" in again[0]
    assert len(read_pids(tmp_path)) == 2 and not any(map(is_alive, read_pids(tmp_path)))


def test_a_server_that_ends_is_a_failed_call(notebook):
    leave = {"tool_calls": [make_call("leave", {})]}
    said, outcome, _ = call_tools(
        notebook, leave, {"tool_calls": [make_call("read", {"number": 1})]}, {"content": "done"}
    )
    assert outcome.ending == "done" and outcome.errors == 2 and all(text.startswith("error:") for text in said)


def test_a_server_that_cannot_start_is_refused_before_a_run_and_faults_in_one(notebook):
    notebook.check()
    notebook.server = ("no-such-server",)
    with pytest.raises(SetupError, match="no-such-server cannot be reached"):
        notebook.check()
    _, outcome, _ = call_tools(notebook, {"content": "done"})
    assert outcome.ending == "error" and "no-such-server" in outcome.fault
