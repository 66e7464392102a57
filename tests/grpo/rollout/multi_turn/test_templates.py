import json
from pathlib import Path

import pytest
import vllm
from hypothesis import given
from hypothesis import strategies as st

from grpo.rollout.multi_turn.chatml import Plain, Qwen3
from grpo.rollout.multi_turn.harmony import HarmonyTemplate
from grpo.rollout.multi_turn.parts import Codec
from grpo.rollout.multi_turn.templates import template_for
from grpo.stack.problem import UserError
from tests.grpo.rollout.multi_turn.dialects import DIALECTS, SEARCH, TOKENIZERS, build

# Newlines and word pieces that merge with what stands beside them; no names of special tokens: a full render has these
# as special tokens, and ours does not (see below).
TEXT = st.lists(st.sampled_from(["hell", "o", "hello", " ", "\n", "\n\n", "wor", "ld", "42", '"', "é", "🙂", "user"]),
                max_size=6).map("".join)  # fmt: skip
SAID = TEXT.filter(str.strip)


@st.composite
def histories(draw):
    """Role sequences: questions, answers, calls with results (one or more), thinking or none, cut by nothing."""
    messages = [{"role": "system", "content": draw(SAID)}] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(TEXT)})
        for step in range(draw(st.integers(0, 2))):
            ids = [f"{number}.{step}.{i}" for i in range(draw(st.integers(1, 2)))]
            calls = [
                {"id": i, "type": "function",
                 "function": {"name": "search", "arguments": json.dumps({"query": draw(TEXT)}, ensure_ascii=False)}}
                for i in ids
            ]  # fmt: skip
            messages.append({"role": "assistant", "content": "", "tool_calls": calls, **draw(THINKING)})
            messages += [{"role": "tool", "tool_call_id": i, "name": "search", "content": draw(TEXT)} for i in ids]
        if draw(st.booleans()):
            messages.append({"role": "assistant", "content": draw(TEXT), **draw(THINKING)})
    return messages


THINKING = st.one_of(st.just({}), SAID.map(lambda text: {"reasoning_content": text}))


def prepare_for_jinja(dialect, messages):
    """Thinking and arguments as the model's own template takes them; harmony has one call a turn."""
    if dialect != "harmony":
        return messages
    made = []
    for message in messages:
        message = dict(message)
        if "reasoning_content" in message:
            message["thinking"] = message.pop("reasoning_content")
        if message.get("tool_calls"):
            call = message["tool_calls"][0]["function"]
            message["tool_calls"] = [{"function": {**call, "arguments": json.loads(call["arguments"])}}]
        made.append(message)
    return made


def keep_single_calls(messages):
    kept, dropped = [], set()
    for message in messages:
        if message.get("tool_calls"):
            dropped |= {call["id"] for call in message["tool_calls"][1:]}
            message = {**message, "tool_calls": message["tool_calls"][:1]}
        if message.get("tool_call_id") not in dropped:
            kept.append(message)
    return kept


@pytest.mark.parametrize("dialect", DIALECTS)
@given(messages=histories(), tools=st.sampled_from([[], [SEARCH]]))
def test_a_render_is_the_full_render_of_the_models_template_token_for_token(dialect, messages, tools):
    tokenizer = TOKENIZERS[dialect]
    if dialect == "harmony":
        messages = keep_single_calls(messages)
    full = tokenizer.apply_chat_template(
        prepare_for_jinja(dialect, messages), tools=tools or None, tokenize=False, add_generation_prompt=True
    )
    template = template_for(tokenizer, source="hub")
    tokens = [token for piece, _ in template.codec.encode(template.render(messages, tools)) for token in piece]
    assert template.codec.decode(tokens) == full
    assert tokens == tokenizer.encode(full, add_special_tokens=False)


@given(messages=histories(), tools=st.sampled_from([[], [SEARCH]]))
def test_qwen3s_format_is_that_of_a_template_from_outside(messages, tools):
    """vLLM ships the template of MiniCPM-V 4.5, whose language model is Qwen3; only its last words are others."""
    tokenizer = TOKENIZERS["qwen3"]
    file = Path(vllm.__file__).parent / "transformers_utils" / "chat_templates" / "template_minicpmv45.jinja"
    named = [{"reasoning" if key == "reasoning_content" else key: value for key, value in message.items()}
             for message in messages]  # fmt: skip
    full = tokenizer.apply_chat_template(named, tools=tools or None, tokenize=False, chat_template=file.read_text())
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    tail = "".join(part.text for part in template_for(tokenizer).tail(messages, first))
    assert full.endswith(tail.removesuffix("<|im_start|>assistant\n"))


def test_formats_are_recognized_by_their_tokens():
    kinds = {dialect: type(template_for(tokenizer)) for dialect, tokenizer in TOKENIZERS.items()}
    assert kinds == {"harmony": HarmonyTemplate, "qwen3": Qwen3, "plain": Plain}
    slow = build("plain")
    slow.eos_token = None
    with pytest.raises(UserError, match="no eos_token"):
        template_for(slow)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("role", ["user", "tool", "head"])
def test_an_environment_cannot_write_special_tokens(dialect, role):
    tokenizer = TOKENIZERS[dialect]
    codec = Codec(tokenizer)
    evil = "".join(codec.added) + "\ue0000\ue001\ue000"
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    base = [
        {"role": "user", "content": evil if role == "head" else "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": evil if role == "tool" else "r"},
        {"role": "user", "content": evil if role == "user" else "q"},
    ]
    harmless = [{**message, "content": "x"} if message["content"] == evil else message for message in base]
    template = template_for(tokenizer)
    rendered, plain = (
        [token for piece, _ in template.codec.encode(template.render(messages)) for token in piece]
        for messages in (base, harmless)
    )
    special = set(codec.added.values())
    assert [t for t in rendered if t in special] == [t for t in plain if t in special]
    assert "".join(codec.added) in codec.decode(rendered)  # it is there, as text


@given(TEXT)
def test_text_without_special_tokens_is_encoded_as_the_tokenizer_encodes_it(text):
    for tokenizer in TOKENIZERS.values():
        codec = Codec(tokenizer)
        hidden = codec.encode_text(text + "<|endoftext|>" + text)
        assert codec.decode(hidden) == text + "<|endoftext|>" + text
        assert codec.encode_text(text) == tokenizer.encode(text, add_special_tokens=False)
        assert not set(hidden) & set(codec.added.values())


def test_turn_is_parsed_by_channel_and_a_cut_turn_up_to_its_end():
    template, encode = template_for(TOKENIZERS["harmony"]), TOKENIZERS["harmony"].encode
    whole = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>42<|return|>"
    read = {"role": "assistant", "content": "42", "reasoning_content": "hm"}
    assert drop_sampled(template.parse(encode(whole))) == read
    for end in range(len(encode(whole))):
        cut = template.parse(encode(whole)[:end])  # nothing raises, and no tool is called
        assert "tool_calls" not in cut and cut["content"] in ("", "4", "42")
    assert drop_sampled(template.parse([])) == {"role": "assistant", "content": ""}


def drop_sampled(message):
    return {name: value for name, value in message.items() if name != "sampled"}


@pytest.mark.parametrize("dialect", ["qwen3", "plain"])
def test_calls_in_text_keep_their_arguments_as_written(dialect):
    template, encode = template_for(TOKENIZERS[dialect]), TOKENIZERS[dialect].encode
    written = ['{"name": "search", "arguments": {"query":"a"}}', '{"name": "read", "arguments": {"id": 3, "x": [1]}}']
    text = "look:\n" + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)
    message = template.parse(encode(text + TOKENIZERS[dialect].eos_token))
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"name": "search", "arguments": '{"query":"a"}'},
        {"name": "read", "arguments": '{"id": 3, "x": [1]}'},
    ]
    assert message["content"] == "look:"
    assert text in "".join(part.text for part in template.render([{"role": "user", "content": "q"}, message]))
    for broken in ("{}", "[1]", "{", '{"name": "a"}', ""):
        read = template.parse(encode(f"<tool_call>\n{broken}\n</tool_call>"))
        assert read["tool_calls"][0]["function"] == {"name": "", "arguments": broken}


def test_a_message_with_an_unsupported_role_is_refused():
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "critic", "content": "c"}]
    for dialect in ("harmony", "qwen3"):
        with pytest.raises(UserError, match="no role critic"):
            template_for(TOKENIZERS[dialect]).render(talk)
    with pytest.raises(UserError, match="not text"):
        template_for(TOKENIZERS["qwen3"]).render([*talk[:2], {"role": "user", "content": [{"type": "image"}]}])
