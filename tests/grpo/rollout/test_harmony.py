"""gpt-oss's turns: kept as they were sampled, read by channel, and rendered from their fields once they are edited."""

import json

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from grpo.environments.environment import BROWSER, PYTHON, SingleAnswer
from grpo.rollout.harmony import SAMPLED, template_for
from grpo.stack.problem import UserError
from tests.grpo.environments.scripted import assert_exact, roll_out_script
from tests.grpo.rollout.tokenizer import SEARCH, TOKENIZER

ANALYSIS = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
FINAL = "<|channel|>final<|message|>42<|return|>"
PREAMBLE = "<|channel|>commentary<|message|>I look it up."
CODE = "<|channel|>analysis to=python code<|message|>"
TEMPLATE = template_for(TOKENIZER)


def parse(text):
    message = TEMPLATE.parse(TOKENIZER.encode(text))
    return {name: value for name, value in message.items() if name != SAMPLED}


def join_tail(*messages) -> str:
    return TEMPLATE.codec.decode([token for tokens, _ in TEMPLATE.tail(messages) for token in tokens])


UNUSUAL = {
    "two analysis messages": ANALYSIS + "a" + NEXT + ANALYSIS + "b" + NEXT + CALL + '{"query": "x"}<|call|>',
    "preamble after thinking": ANALYSIS + "a" + NEXT + PREAMBLE + NEXT + CALL + '{"query": "x"}<|call|>',
    "preamble before thinking": PREAMBLE + NEXT + ANALYSIS + "a" + NEXT + CALL + '{"query": "x"}<|call|>',
    "empty analysis": ANALYSIS + NEXT + CALL + '{"query": "x"}<|call|>',
    "thinking between calls": CALL + '{"query": "x"}' + NEXT + ANALYSIS + "b" + NEXT + CALL + '{"query": "y"}<|call|>',
    "address before the channel": " to=functions.search<|channel|>commentary json<|message|>{}<|call|>",
    "call in the thinking": "<|channel|>analysis to=functions.search<|message|>{}<|call|>",
    "no channel": " to=functions.search<|message|>{}<|call|>",
    "text after <|end|>": ANALYSIS + "a<|end|>b<|start|>assistant" + CALL + "{}<|call|>",
    "call without a body": "<|channel|>commentary to=functions.search<|call|>",
}


@pytest.mark.parametrize("turn", UNUSUAL.values(), ids=UNUSUAL)
def test_a_turn_is_kept_as_it_was_sampled(turn):
    policy, engine, outcome, response = roll_out_script([turn, turn, FINAL])
    assert outcome.turns == 3 and outcome.calls == 2 * turn.count("to=")
    assert response["branches"] == [] and policy.history.differences == []
    assert_exact(policy, engine)
    assert TEMPLATE.codec.decode(policy.history.rows[0].tokens).count("assistant" + turn) == 2


def test_an_edited_turn_is_rendered_from_its_fields():
    sampled = ANALYSIS + "a" + NEXT + ANALYSIS + "b" + NEXT + CALL + '{"query":"x"}<|call|>'
    message = TEMPLATE.parse(TOKENIZER.encode(sampled))
    assert join_tail(message) == f"<|start|>assistant{sampled}<|start|>assistant"
    message["reasoning_content"] = "short"
    assert join_tail(message) == (
        "<|start|>assistant<|channel|>analysis<|message|>short<|end|>"
        '<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{"query":"x"}<|call|>'
        "<|start|>assistant"
    )


def test_an_edited_call_of_python_is_rendered_as_code():
    message = TEMPLATE.parse(TOKENIZER.encode(CODE + "print(1)<|call|>"))
    (call,) = message["tool_calls"]
    for arguments, body in ((json.dumps({"code": "print(2)"}), "print(2)"), ("[1]", "[1]"), ("no JSON", "no JSON")):
        call["function"]["arguments"] = arguments
        assert join_tail(message) == f"<|start|>assistant{CODE}{body}<|call|><|start|>assistant"


def test_a_turn_is_read_by_channel_and_a_cut_turn_up_to_its_end():
    whole = ANALYSIS + "hm" + NEXT + FINAL
    read = {"role": "assistant", "channel": "final", "content": "42", "reasoning_content": "hm"}
    assert parse(whole) == read
    for end in range(len(TOKENIZER.encode(whole))):
        cut = TEMPLATE.parse(TOKENIZER.encode(whole)[:end])  # nothing raises, and no tool is called
        assert "tool_calls" not in cut and "42".startswith(cut["content"])


@pytest.mark.parametrize("role", ["user", "assistant", "developer", "system"])
def test_a_message_to_a_role_is_no_call(role):
    said = {"role": "assistant", "channel": "final", "content": "42"}
    assert parse(f" to={role}<|channel|>final<|message|>42<|call|>") == said
    _, _, outcome, _ = roll_out_script([f"<|channel|>final to={role}<|message|>42<|return|>"])
    assert (outcome.ending, outcome.calls, outcome.messages[-1]["content"]) == ("done", 0, "42")


@pytest.mark.parametrize(("label", "reward"), [("2", 1.0), ("1", 0.0), ("12", 0.0)])
def test_of_two_finals_the_last_one_reaches_an_environment(label, reward):
    finals = f"<|channel|>final<|message|>\\boxed{{1}}{NEXT}<|channel|>final<|message|>\\boxed{{2}}<|return|>"
    _, _, outcome, response = roll_out_script([finals], SingleAnswer("1 + 1?", label))
    assert outcome.messages[-1]["content"] == "\\boxed{2}" and response["reward"] == reward


@pytest.mark.parametrize("instructions", ["Be brief.", "Be\n\nbrief.\n\n", "<|end|>\n\n", "\ue000"])
def test_instructions_without_tools_have_no_empty_line_after_them(instructions):
    question = [{"role": "system", "content": instructions}, {"role": "user", "content": "Be brief.\n\n"}]
    served = TEMPLATE.codec.decode(TEMPLATE.render_tokens(question))
    assert f"# Instructions\n\n{instructions}<|end|><|start|>user" in served
    with_tools = TEMPLATE.codec.decode(TEMPLATE.render_tokens(question, [SEARCH]))
    assert f"# Instructions\n\n{instructions}\n\n// look it up" in with_tools


def test_template_variables_and_declared_tools_are_joined():
    template = template_for(TOKENIZER, {"builtin_tools": ["browser"], "reasoning_effort": "high"})
    for tools, named in (
        ([PYTHON.as_openai()], "## browser\n\n## python"),
        ([BROWSER.as_openai(), SEARCH], "## browser"),
    ):
        text = template.codec.decode(template.render_tokens([{"role": "user", "content": "q"}], tools))
        assert f"Reasoning: high\n\n{named}\n\n#" in text


@pytest.mark.parametrize("place", ["first", "user", "tool", "name"])
def test_an_environment_cannot_write_special_tokens(place):
    evil = "".join(TEMPLATE.codec.added) + "\ue0000\ue001\ue000"

    def render(text):
        said = {name: "q" for name in ("first", "user", "tool", "name")} | {place: text}
        call = {"id": "1", "type": "function", "function": {"name": said["name"], "arguments": "{}"}}
        return TEMPLATE.render_tokens(
            [
                {"role": "user", "content": said["first"]},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": said["tool"]},
                {"role": "user", "content": said["user"]},
            ]
        )

    special = set(TEMPLATE.codec.added.values())
    assert [token for token in render(evil) if token in special] == [token for token in render("x") if token in special]
    assert evil in TEMPLATE.codec.decode(render(evil))  # it is there, as text


QUESTION, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([QUESTION, ANSWER], "nothing to answer"),
        ([ANSWER, QUESTION], "nothing to answer"),
        ([QUESTION, ANSWER, {"role": "critic", "content": "c"}], "critic"),
        ([QUESTION, ANSWER, {"role": "user", "content": [{"type": "image"}]}], "text"),
    ],
)
def test_messages_that_do_not_fit_are_refused(messages, what):
    with pytest.raises(UserError, match=what):
        TEMPLATE.render(messages)


def test_another_models_tokenizer_is_refused():
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    with pytest.raises(UserError, match="gpt-oss"):
        template_for(other)
