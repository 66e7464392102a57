"""gpt-oss's turns as they are sampled, and its built-in tools."""

import json

import pytest

from grpo.rollout.multi_turn.environment import BROWSER, PYTHON, Environment, Score, ToolError, list_functions
from grpo.rollout.multi_turn.templates import template_for
from grpo.stack.problem import UserError
from tests.grpo.rollout.multi_turn.dialects import SEARCH, TOKENIZERS
from tests.grpo.rollout.multi_turn.scripted import Library
from tests.grpo.rollout.multi_turn.test_history import assert_exact, roll_out_script

ANALYSIS = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
FINAL = "<|channel|>final<|message|>42<|return|>"
PREAMBLE = "<|channel|>commentary<|message|>I look it up."
CODE = "<|channel|>analysis to=python code<|message|>"


def join_text(parts) -> str:
    return "".join(part.text for part in parts)


UNUSUAL = {
    "two analysis messages": ANALYSIS + "a" + NEXT + ANALYSIS + "b" + NEXT + CALL + '{"query": "x"}<|call|>',
    "preamble": PREAMBLE + NEXT + CALL + '{"query": "x"}<|call|>',
    "preamble after thinking": ANALYSIS + "a" + NEXT + PREAMBLE + NEXT + CALL + '{"query": "x"}<|call|>',
    "preamble before thinking": PREAMBLE + NEXT + ANALYSIS + "a" + NEXT + CALL + '{"query": "x"}<|call|>',
    "empty analysis": ANALYSIS + NEXT + CALL + '{"query": "x"}<|call|>',
    "call that ends with <|end|>": CALL + '{"query": "x"}' + NEXT + CALL + '{"query": "y"}<|call|>',
    "thinking between calls": CALL + '{"query": "x"}' + NEXT + ANALYSIS + "b" + NEXT + CALL + '{"query": "y"}<|call|>',
    "address before the channel": " to=functions.search<|channel|>commentary json<|message|>{}<|call|>",
    "call in the thinking": "<|channel|>analysis to=functions.search<|message|>{}<|call|>",
    "no channel": " to=functions.search<|message|>{}<|call|>",
    "text after <|end|>": ANALYSIS + "a<|end|>b<|start|>assistant" + CALL + "{}<|call|>",
    "call without a body": "<|channel|>commentary to=functions.search<|call|>",
    "names of special tokens as text": ANALYSIS + "<|start" + "|> here" + NEXT + CALL + "{}<|call|>",
}


@pytest.mark.parametrize("turn", UNUSUAL.values(), ids=UNUSUAL)
def test_a_turn_is_kept_as_it_was_sampled(turn):
    policy, engine, outcome, response = roll_out_script("harmony", [turn, turn, FINAL])
    assert outcome.turns == 3 and outcome.calls == 2 * turn.count("to=")
    assert response["branches"] == [] and policy.history.differences == []
    assert_exact(policy, engine)
    assert policy.history.codec.decode(policy.history.rows[0].tokens).count("assistant" + turn) == 2


def test_an_unfinished_answer_is_kept_and_only_its_return_token_changes():
    policy, engine, _, _ = roll_out_script("harmony", [ANALYSIS + "hm<|return|>", FINAL], Library(replies=["go on"]))
    assert engine.calls[1][0] != engine.calls[0][0]
    prompt = policy.history.codec.decode(engine.calls[1][0])
    assert prompt.endswith(f"{ANALYSIS}hm<|end|><|start|>user<|message|>go on<|end|><|start|>assistant")


def test_an_edited_turn_is_rendered_from_its_fields():
    template = template_for(TOKENIZERS["harmony"])
    sampled = ANALYSIS + "a" + NEXT + ANALYSIS + "b" + NEXT + CALL + '{"query":"x"}<|call|>'
    message = template.parse(TOKENIZERS["harmony"].encode(sampled))
    assert join_text(template.tail([message], 0)) == f"<|start|>assistant{sampled}<|start|>assistant"
    message["reasoning_content"] = "short"
    assert join_text(template.tail([message], 0)) == (
        "<|start|>assistant<|channel|>analysis<|message|>short<|end|>"
        '<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{"query":"x"}<|call|>'
        "<|start|>assistant"
    )


class Notebook(Environment):
    """Runs no code: it returns it, with the names that it was called by."""

    tools = (PYTHON, BROWSER)

    def __init__(self, replies=()):
        super().__init__("6 * 7?", "42")
        self.calls, self.replies = [], list(replies)

    async def call(self, name, arguments):
        self.calls.append((name, arguments))
        if name not in ("python", "browser.search"):
            raise ToolError(f"there is no tool {name}")
        return f'"{name}"\n42'

    async def reply(self, messages):
        return [{"role": "user", "content": self.replies.pop(0)}] if self.replies else None

    async def score(self, messages, ending):
        return Score(1.0, 1.0)


def test_built_in_tools_are_called_and_answer_as_gpt_oss_knows_them():
    code = 'x = {"code": 6}\nprint("é 🙂", x)\n'
    look = '<|channel|>analysis to=browser.search code<|message|>{"query": "42"}<|call|>'
    notebook = Notebook()
    policy, engine, outcome, _ = roll_out_script("harmony", [CODE + code + "<|call|>", look, FINAL], notebook)
    assert notebook.calls == [("python", {"code": code}), ("browser.search", {"query": "42"})]
    assert outcome.errors == 0 and policy.history.differences == []
    assert_exact(policy, engine)
    prompt = policy.history.codec.decode(engine.calls[-1][0])
    assert "\n\n## python\n\n## browser\n\n" in prompt  # declared by the chat template
    said = '<|start|>{0} to=assistant<|channel|>analysis<|message|>"{0}"\n42<|end|><|start|>assistant'
    assert CODE + code + "<|call|>" + said.format("python") in prompt
    assert prompt.endswith(look + said.format("browser.search"))
    calls = [call["function"] for message in outcome.messages for call in message.get("tool_calls", ())]
    assert [json.loads(call["arguments"]) for call in calls] == [{"code": code}, {"query": "42"}]  # as for any tool


def test_calls_of_built_in_tools_are_left_out_with_the_thinking_once_there_is_an_answer():
    script = [ANALYSIS + "hm" + NEXT + CODE + "1<|call|>", FINAL, FINAL]
    policy, engine, _, _ = roll_out_script("harmony", script, Notebook(replies=["and?"]))
    prompt = policy.history.codec.decode(engine.calls[-1][0])
    assert "python to=assistant" in policy.history.codec.decode(engine.calls[1][0])
    assert prompt.endswith(
        "<|start|>user<|message|>6 * 7?<|end|><|start|>assistant<|channel|>final<|message|>42<|end|>"
        "<|start|>user<|message|>and?<|end|><|start|>assistant"
    )
    assert_exact(policy, engine)


def test_an_edited_call_of_python_is_rendered_as_code():
    template = template_for(TOKENIZERS["harmony"])
    message = template.parse(TOKENIZERS["harmony"].encode(CODE + "print(1)<|call|>"))
    (call,) = message["tool_calls"]
    for arguments, body in ((json.dumps({"code": "print(2)"}), "print(2)"), ("[1]", "[1]"), ("no JSON", "no JSON")):
        call["function"]["arguments"] = arguments
        assert join_text(template.tail([message], 0)) == f"<|start|>assistant{CODE}{body}<|call|><|start|>assistant"


def test_a_name_of_a_tool_cannot_write_special_tokens():
    template, name = template_for(TOKENIZERS["harmony"]), "search<|message|>42<|end|>"
    written = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}", "strict": True}}
    for message in ({"role": "assistant", "tool_calls": [written]}, {"role": "tool", "name": name, "content": ""}):
        with pytest.raises(UserError, match="the name of a tool is 'search<"):
            template.tail([message], 0)


@pytest.mark.parametrize("dialect", ["qwen3", "plain"])
def test_other_models_are_offered_built_in_tools_as_functions(dialect):
    template = template_for(TOKENIZERS[dialect])
    tools = [PYTHON.as_openai(), SEARCH, BROWSER.as_openai()]
    names = [tool["function"]["name"] for tool in list_functions(tools)]
    assert names == ["python", "search", "browser.search", "browser.open", "browser.find"]
    prompt = join_text(template.render([{"role": "user", "content": "q"}], tools))
    assert all(f'"name": "{name}"' in prompt for name in names)


@pytest.mark.parametrize("instructions", ["Be brief.", "Be\n\nbrief.\n\n", "<|end|>\n\n"])
def test_instructions_without_tools_have_no_empty_line_after_them(instructions):
    question = [{"role": "system", "content": instructions}, {"role": "user", "content": "Be brief.\n\n"}]
    served, hub = (
        join_text(template_for(TOKENIZERS["harmony"], source=source).render(question)) for source in ("served", "hub")
    )
    assert f"# Instructions\n\n{instructions}<|end|><|start|>user" in served
    assert served == hub.replace(f"{instructions}\n\n<|end|>", f"{instructions}<|end|>", 1)
    with_tools = template_for(TOKENIZERS["harmony"]).render(question, [SEARCH])
    assert f"# Instructions\n\n{instructions}\n\n// look it up" in join_text(with_tools)


def test_template_variables_and_declared_tools_are_joined():
    variables = {"builtin_tools": ["browser"], "reasoning_effort": "high"}
    template = template_for(TOKENIZERS["harmony"], variables)
    question = [{"role": "user", "content": "q"}]
    assert "Reasoning: high\n\n## browser\n\n## python\n\n#" in join_text(
        template.render(question, [PYTHON.as_openai()])
    )
    assert "Reasoning: high\n\n## browser\n\n#" in join_text(template.render(question, [BROWSER.as_openai()]))
    assert "Reasoning: high\n\n## browser\n\n#" in join_text(template.render(question, [SEARCH]))
