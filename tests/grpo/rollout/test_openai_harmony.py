"""gpt-oss's format against openai-harmony and vLLM, which serve it: the same tokens, of gpt-oss's own vocabulary."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
)
from vllm.entrypoints.openai.parser.harmony_utils import (
    auto_drop_analysis_messages,
    parse_chat_inputs_to_harmony_messages,
)

from grpo.model.vocabulary import find_allocated
from grpo.rollout import chat_template, response_text
from grpo.rollout.harmony import renderer, template_for
from grpo.rollout.response_text import BREAK
from tests.grpo.rollout import gpt_oss_tokenizer

# As text
NAMES = [
    f"<{BREAK}|end|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "<|channel|>final<|message|>",
    "<|reserved_200000|>",
]  # as text
WORDS = ["hell", "o", " ", "\n", "\n\n", " \n", "42", '"', "é", "e\u0301", "🙂", "你好", "\\", "don't", "X\t", *NAMES]
TEXT = st.one_of(st.lists(st.sampled_from(WORDS), max_size=8).map("".join), st.text(max_size=20))

SAID = TEXT.filter(bool)
TOOLS = ["search", "get_weather", "a-b"]


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        encoding, tokenizer = gpt_oss_tokenizer.load(tmp_path_factory.mktemp("vocabulary"), monkeypatch)
    template = template_for(tokenizer)

    def render_served(messages: list[Message]) -> list[int]:
        return encoding.render_conversation_for_completion(Conversation.from_messages(messages), Role.ASSISTANT)

    def render_ours(messages: list[dict]) -> list[int]:
        return [token for tokens, _ in template.tail(messages) for token in tokens]

    return SimpleNamespace(
        encoding=encoding, template=template, tokenizer=tokenizer, served=render_served, ours=render_ours
    )


@given(text=TEXT)
def test_the_tokenizer_is_that_of_openai_harmony(gpt_oss, text):
    assert gpt_oss.template.codec.encode_text(text) == gpt_oss.encoding.encode(text, disallowed_special=())


def test_no_reserved_id_of_gpt_oss_is_sampled(gpt_oss):
    reserved = (200000, 200001, 200004, *range(200009, 200012), *range(200013, 200018))
    assert find_allocated(gpt_oss.tokenizer) == (200019, reserved)


@st.composite
def chats(draw):
    """Histories of a chat API: thinking or none, parallel calls and their results in any order."""
    messages = [draw(SPOKEN)]
    for turn in range(draw(st.integers(0, 4))):
        message = {"role": "assistant", "content": ""} | draw(THINKING)
        calls = draw(st.lists(CALL, max_size=3))
        ids = [f"{turn}.{number}" for number in range(len(calls))]
        if calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": call} for id_, call in zip(ids, calls, strict=True)
            ]
            results = [
                {"role": "tool", "tool_call_id": id_, "content": draw(TEXT)} for id_ in draw(st.permutations(ids))
            ]
            messages += [message, *results]
        else:
            messages += [message | {"content": draw(SAID)}, draw(SPOKEN)]
    return messages


SPOKEN = st.fixed_dictionaries({"role": st.sampled_from(["user", "developer"]), "content": TEXT})
THINKING = st.one_of(st.just({}), SAID.map(lambda text: {"reasoning_content": text}))
CALL = st.fixed_dictionaries({
    "name": st.sampled_from(TOOLS),
    "arguments": TEXT.map(lambda text: json.dumps({"query": text}, ensure_ascii=False)),
})  # fmt: skip


@given(messages=chats())
@settings(max_examples=300)
def test_a_chat_is_rendered_as_vllm_serves_it(gpt_oss, messages):
    # vLLM 0.29 reads no other name for the thinking.
    to_vllm = [{name.removesuffix("_content"): value for name, value in message.items()} for message in messages]
    served = [add_instructions(message) for message in parse_chat_inputs_to_harmony_messages(to_vllm)]
    assert gpt_oss.ours(messages) == gpt_oss.served(auto_drop_analysis_messages(served))


def add_instructions(message: Message) -> Message:
    """Give a developer's message openai-harmony's form. vLLM does so from 0.29 on; before, it took the bare text."""
    (content,) = message.content
    if message.author.role != Role.DEVELOPER or isinstance(content, DeveloperContent):
        return message
    return Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_instructions(content.text))


# What gpt-oss's chat template makes of messages before the first answer.
HEAD = """\
{%- macro described() -%}
{{- "You are ChatGPT, a large language model trained by OpenAI.\\nKnowledge cutoff: 2024-06\\n" -}}
{{- "Current date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: " + reasoning_effort + "\\n\\n" -}}
{{- "# Valid channels: analysis, commentary, final. Channel must be included for every message." -}}
{%- endmacro -%}
{{- "<|start|>system<|message|>" + described() + "<|end|>" -}}
{%- for message in messages -%}
{%- if loop.first and message.role in ("system", "developer") -%}
{%- if message.content -%}
{{- "<|start|>developer<|message|># Instructions\\n\\n" + message.content + "\\n\\n<|end|>" -}}
{%- endif -%}
{%- else -%}
{{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" -}}
{%- endif -%}
{%- endfor -%}
"""


@given(system=st.none() | SAID, question=TEXT, rest=st.none() | st.tuples(SAID, TEXT))
@settings(max_examples=40)
def test_a_single_answers_prompt_is_rendered_as_it_is_served(gpt_oss, system, question, rest):
    content = SystemContent.new().with_conversation_start_date("2030-01-02").with_reasoning_effort(ReasoningEffort.HIGH)
    served = [Message.from_role_and_content(Role.SYSTEM, content)]
    ours = [{"role": "user", "content": question}]
    if system:
        instructions = DeveloperContent.new().with_instructions(system)
        served.append(Message.from_role_and_content(Role.DEVELOPER, instructions))
        ours.insert(0, {"role": "system", "content": system})
    served.append(Message.from_role_and_content(Role.USER, question))
    if rest:
        ours += [{"role": "assistant", "content": rest[0]}, {"role": "user", "content": rest[1]}]
        served += [make_assistant_message("final", rest[0]), Message.from_role_and_content(Role.USER, rest[1])]
    gpt_oss.tokenizer.chat_template = HEAD
    tokens = renderer(gpt_oss.tokenizer, chat_template.variables("high", None, "2030-01-02"))(ours)
    assert tokens == gpt_oss.served(served)
    text = response_text.decode_tokens(gpt_oss.tokenizer, tokens)
    assert response_text.encode_text(gpt_oss.tokenizer, text) == tokens


def make_assistant_message(
    channel: str | None, text: str, recipient: str | None = None, kind: str | None = None
) -> Message:
    message = Message.from_role_and_content(Role.ASSISTANT, text)
    message = message.with_channel(channel) if channel else message
    message = message.with_recipient(recipient) if recipient else message
    return message.with_content_type(kind) if kind else message


def make_tool_message(recipient: str, channel: str, text: str) -> Message:
    made = Message.from_author_and_content(Author.new(Role.TOOL, recipient), text)
    return made.with_channel(channel).with_recipient("assistant")


THOUGHT = st.builds(make_assistant_message, st.just("analysis"), TEXT)
PREAMBLE = st.builds(make_assistant_message, st.just("commentary"), TEXT)
FUNCTION = st.builds(
    make_assistant_message, st.just("commentary"), TEXT, st.sampled_from(TOOLS).map("functions.{}".format),
    st.sampled_from([None, "json", "<|constrain|>json"]),
)  # fmt: skip
PYTHON = st.builds(
    make_assistant_message, st.just("analysis"), TEXT, st.just("python"), st.sampled_from([None, "code"])
)
BROWSER = st.builds(
    make_assistant_message, st.just("analysis"), TEXT, st.sampled_from(["browser.search", "browser.open"]),
    st.sampled_from([None, "code", "<|constrain|>json"]),
)  # fmt: skip
FINAL = st.builds(make_assistant_message, st.just("final"), TEXT)
CALLS = st.one_of(FUNCTION, PYTHON, BROWSER)
ENDS = st.one_of(CALLS.map(lambda call: [call]), st.lists(FINAL, min_size=1, max_size=2))
TURNS = st.tuples(st.lists(st.one_of(THOUGHT, PREAMBLE), max_size=4), ENDS).map(lambda turn: [*turn[0], *turn[1]])


@given(turns=st.lists(TURNS, min_size=1, max_size=4), results=st.lists(TEXT, min_size=4, max_size=4))
@settings(max_examples=300)
def test_sampled_turns_are_parsed_and_kept_as_openai_harmony_would(gpt_oss, turns, results):
    """Any order of thoughts and preambles, then a call or an answer. What it drops is dropped by the first answer."""
    encoding, added = gpt_oss.encoding, gpt_oss.template.codec.added
    prefix = encoding.encode("<|start|>assistant", allowed_special="all")
    theirs, ours = [], []
    for turn, result in zip(turns, results, strict=False):
        tokens = [token for message in turn for token in encoding.render(message)]
        if turn[-1].channel == "final":
            tokens[-1] = added["<|return|>"]
        message = gpt_oss.template.parse(tokens[len(prefix) :])
        assert_same(message, encoding.parse_messages_from_completion_tokens(tokens[len(prefix) :], Role.ASSISTANT))
        theirs, ours = [*theirs, *turn], [*ours, message]
        for call in message.get("tool_calls", ()):
            (last,) = (each for each in turn if each.recipient)
            theirs.append(make_tool_message(last.recipient, last.channel, result))
            ours.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if turn[-1].channel == "final":
            theirs = [each for each in theirs if each.channel != "analysis"]  # as vLLM drops it before the next turn
            theirs.append(Message.from_role_and_content(Role.USER, result))
            ours.append({"role": "user", "content": result})
    assert gpt_oss.ours(ours) == gpt_oss.served(theirs)


def assert_same(message, parsed):
    calls = [call["function"] for call in message.get("tool_calls", ())]
    recipients = [each for each in parsed if each.recipient]
    assert [call["name"] for call in calls] == [each.recipient.removeprefix("functions.") for each in recipients]
    for call, each in zip(calls, recipients, strict=True):
        body = each.content[0].text
        assert call["arguments"] == (
            json.dumps({"code": body}, ensure_ascii=False) if call["name"] == "python" else body
        )
    texts = {name: [each.content[0].text for each in parsed if each.channel == name and not each.recipient]
             for name in ("analysis", "commentary", "final")}  # fmt: skip
    assert message.get("reasoning_content", "") == "\n".join(texts["analysis"])
    assert message["content"] == "".join(texts["final"][-1:] or texts["commentary"])


HEADERS = [
    "<|channel|>commentary to=functions.search <|constrain|>json",
    "<|channel|>commentary to=functions.search<|constrain|>json",
    "<|channel|>commentary to=functions.search code",
    "<|channel|>analysis to=python code",
    "<|channel|>analysis to=python",
    " to=python<|channel|>analysis code",
    " to=functions.search<|channel|>commentary json",
    " to=functions.search<|channel|>commentary <|constrain|>json",
    " to=browser.open<|channel|>analysis",
    " to=functions.search",
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_call_is_read_wherever_its_address_stands(gpt_oss, header):
    tokens = gpt_oss.tokenizer.encode(f'{header}<|message|>{{"query": 1}}<|call|>')
    message = gpt_oss.template.parse(tokens)
    assert len(message["tool_calls"]) == 1
    assert_same(message, gpt_oss.encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT))
