"""A rollout's samples against an engine that keeps its own books."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from grpo.rollout.multi_turn.history import RolloutHistory
from grpo.rollout.multi_turn.rollout import EnginePolicy, roll_out
from grpo.rollout.multi_turn.templates import template_for
from grpo.rollout.trajectory import Origin
from tests.grpo.rollout.multi_turn.dialects import DIALECTS, SEARCH, TOKENIZERS, build
from tests.grpo.rollout.multi_turn.scripted import LIMITS, Library, ScriptedEngine, make_params
from tests.grpo.rollout.multi_turn.test_templates import prepare_for_jinja

ENDS = {"harmony": "<|return|>", "qwen3": "<|im_end|>", "plain": "<|endoftext|>"}


def make_call(dialect, query="rain"):
    if dialect == "harmony":
        return f' to=functions.search<|channel|>commentary json<|message|>{{"query": "{query}"}}<|call|>'
    return f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call>{ENDS[dialect]}'


def make_thought(dialect, text):
    if dialect == "harmony":
        return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"
    return f"<think>\n{text}\n</think>\n\n" if dialect == "qwen3" else ""


def make_answer(dialect, text="42"):
    return ("<|channel|>final<|message|>" if dialect == "harmony" else "") + text + ENDS[dialect]


def roll_out_script(dialect, script, environment=None, max_rows=99, max_length=4000, source="served", **engine):
    template = template_for(TOKENIZERS[dialect], source=source)
    engine = ScriptedEngine(template.codec, script, **engine)
    policy = EnginePolicy(template, engine, make_params(), max_length)
    outcome, response = asyncio.run(roll_out(lambda: environment or Library(), policy, LIMITS, max_rows))
    return policy, engine, outcome, response


def assert_exact(policy, engine):
    """The tokens and log-probs of every call are in exactly one sample; nothing else is trained."""
    trained = []
    for sample in policy.history.rows:
        for start, end in sample.action_ranges():
            trained.append((sample.tokens[:start], sample.tokens[start:end], sample.log_probs[start:end]))
    assert [(prompt, tokens) for prompt, tokens, _ in trained] == engine.calls
    for number, (_, tokens, log_probs) in enumerate(trained):
        assert log_probs == [-(1 + number + index / 1000) for index in range(len(tokens))]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_history_that_grows_is_one_sample_and_each_prompt_is_the_full_render(dialect):
    script = [make_thought(dialect, "hm") + make_call(dialect), make_call(dialect, "sun"), make_answer(dialect)]
    policy, engine, outcome, response = roll_out_script(dialect, script, source="hub")
    assert outcome.ending == "done" and len(policy.history.rows) == 1 and not response["branches"]
    assert_exact(policy, engine)
    codec = policy.history.codec
    for number, (prompt, _) in enumerate(engine.calls):
        messages = outcome.messages[: 1 + 2 * number]
        full = TOKENIZERS[dialect].apply_chat_template(
            prepare_for_jinja(dialect, messages), tools=[SEARCH], tokenize=False, add_generation_prompt=True
        )
        assert codec.decode(prompt) == full  # the newline after an end marker too
    assert engine.calls[1][0] != TOKENIZERS[dialect].encode(full)  # the policy's own tokens, not the tokenizer's


@pytest.mark.parametrize("dialect", DIALECTS)
def test_environment_and_template_tokens_are_distinguished(dialect):
    policy, _, _, _ = roll_out_script(dialect, [make_call(dialect), make_answer(dialect)])
    (sample,), codec = policy.history.rows, policy.history.codec
    said = [token for token, origin in zip(sample.tokens, sample.origins, strict=True) if origin is Origin.ENVIRONMENT]
    assert "there rain" in codec.decode(said)
    gap = sample.origins[sample.action_ranges()[0][1] : sample.action_ranges()[1][0]]
    # Plain text has no special tokens between role and content, so the whole run counts as the environment's.
    assert set(gap) == ({Origin.ENVIRONMENT} if dialect == "plain" else {Origin.ENVIRONMENT, Origin.TEMPLATE})


def test_thinking_that_the_template_strips_begins_a_branch_and_nothing_is_trained_twice():
    for dialect in ("harmony", "qwen3"):
        script = [
            make_thought(dialect, "hm") + make_call(dialect),
            make_thought(dialect, "so") + make_answer(dialect),
            make_answer(dialect),
        ]
        policy, engine, _, response = roll_out_script(dialect, script, Library(replies=["and?"]))
        first, second = policy.history.rows
        assert_exact(policy, engine)
        assert "hm" in policy.history.codec.decode(first.tokens)
        assert "hm" not in policy.history.codec.decode(second.tokens)
        assert [len(sample.action_ranges()) for sample in (first, second)] == [2, 1]
        assert len(response["branches"]) == 1 and response["extra_logs"]["branches"] == 1
        (why,) = policy.history.differences
        begin = first.action_ranges()[0][0]  # the position of the thinking
        assert why.startswith(f"position {begin}, after ")
        assert "hm" in why.partition("rendered")[0] and "hm" not in why.partition("rendered")[2]


def test_return_token_becomes_an_end_token_in_a_branch():
    policy, engine, _, _ = roll_out_script(
        "harmony", [make_answer("harmony"), make_answer("harmony", "43")], Library(replies=["and?"])
    )
    first, second = policy.history.rows
    codec = policy.history.codec
    end = [codec.added["<|return|>"], codec.added["<|end|>"]]
    assert first.tokens[-1] == end[0] and end[0] not in second.tokens[:-1]
    # Up to there, the tokens are the very ones that were sampled; they are masked, and so is the <|end|>.
    kept = second.tokens.index(codec.added["<|message|>"], len(first.tokens) - 8)
    assert second.tokens[: kept + 1] == first.tokens[: kept + 1]
    assert_exact(policy, engine)


def test_an_answer_without_thinking_is_extended_in_qwen3():
    policy, engine, _, _ = roll_out_script(
        "qwen3", [make_answer("qwen3"), make_answer("qwen3")], Library(replies=["and?"])
    )
    assert len(policy.history.rows) == 1
    assert "42<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n" in policy.history.codec.decode(engine.calls[1][0])


def test_a_lossy_tool_call_begins_a_branch():
    lossy = '<tool_call>\n{"arguments":{"query":"rain"},"name":"search"}\n</tool_call><|im_end|>'
    policy, engine, outcome, _ = roll_out_script("qwen3", [lossy, make_answer("qwen3")])
    assert outcome.errors == 0 and len(policy.history.rows) == 2
    assert_exact(policy, engine)
    assert "arguments" in policy.history.differences[0]


class Forgetful(Library):
    async def reply(self, messages):
        if len(messages) > 4:
            return None
        del messages[1:]  # the history is rewritten
        return [{"role": "user", "content": "again"}]


def test_an_edited_history_begins_a_branch_that_keeps_the_shared_tokens():
    policy, engine, _, _ = roll_out_script(
        "qwen3", [make_answer("qwen3"), make_call("qwen3"), make_answer("qwen3")], Forgetful()
    )
    first, second = policy.history.rows
    assert_exact(policy, engine)
    question = first.action_ranges()[0][0]
    assert second.tokens[: question - 2] == first.tokens[: question - 2]  # everything except the beginning of the turn


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_turn_cut_at_any_token_ends_the_rollout_there(dialect):
    script = [make_call(dialect), make_answer(dialect)]
    policy, engine, _, _ = roll_out_script(dialect, script)
    whole = policy.history.rows[0].tokens
    begin = len(engine.calls[0][0])
    for length in range(begin + 1, len(whole) + 1):
        cut, books, outcome, response = roll_out_script(dialect, script, max_length=length)
        assert cut.history.rows[-1].tokens == whole[: len(cut.history.rows[-1].tokens)]
        assert len(cut.history.rows[-1].tokens) <= length
        assert response["truncated"] == (outcome.ending == "length") == (length < len(whole))
        assert_exact(cut, books)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(texts=st.lists(st.sampled_from(["a", "hell", "o\n", "\n\n", "é🙂", "", "w orld ", "4"]), min_size=2, max_size=4),
       replies=st.lists(st.sampled_from(["\n", "lo", "\n\nx", "ld"]), min_size=3, max_size=3),
       seed=st.integers(0, 99))  # fmt: skip
@settings(max_examples=40)
def test_merges_across_boundaries_never_change_a_token_that_was_sampled(dialect, texts, replies, seed):
    script = [make_answer(dialect, text) for text in texts]
    policy, engine, outcome, _ = roll_out_script(dialect, script, Library(replies=replies), seed=seed)
    assert outcome.turns == 4
    assert_exact(policy, engine)
    codec = policy.history.codec
    for number, (prompt, _) in enumerate(engine.calls):
        full = TOKENIZERS[dialect].apply_chat_template(
            prepare_for_jinja(dialect, outcome.messages[: 1 + 2 * number]), tools=[SEARCH], tokenize=False,
            add_generation_prompt=True,
        )  # fmt: skip
        assert codec.decode(prompt) == full


def test_cut_sample_is_extended_as_rendered():
    """As after a truncated turn that an environment goes on from: the end marker is the template's."""
    template = template_for(TOKENIZERS["qwen3"])
    history, talk = RolloutHistory(template.codec), [{"role": "user", "content": "q"}]
    history.prompt(template.render(talk))
    sampled = template.codec.encode_text("half of it")
    history.add(sampled, [-1.0] * len(sampled))
    talk += [template.parse(sampled), {"role": "user", "content": "go on"}]
    prompt = history.prompt(template.render(talk))
    assert template.codec.decode(prompt).endswith(
        "half of it<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )
    history.add([1], [-1.0])
    (sample,) = history.rows
    end = template.codec.added["<|im_end|>"]
    assert [o for t, o in zip(sample.tokens, sample.origins, strict=True) if t == end][1] is Origin.TEMPLATE


def test_a_prompt_that_the_engine_changed_begins_a_new_sample(caplog):
    policy, engine, _, response = roll_out_script(
        "qwen3", [make_call("qwen3"), make_answer("qwen3")],
        change=lambda prompt: prompt if len(prompt) < 120 else [*prompt[:5], 7, *prompt[6:]],
    )  # fmt: skip
    changed = [given for given, _ in engine.calls if given[5] == 7]
    assert policy.mismatches == len(changed) > 0 and response["extra_logs"]["token_mismatch"] == len(changed)
    assert "differs first at position 5, after " in caplog.text
    assert_exact(policy, engine)  # training uses the engine's tokens


def test_a_turn_without_log_probs_is_counted_and_not_trained_on(caplog):
    policy, _, _, response = roll_out_script("qwen3", [make_answer("qwen3")], log_probs=False)
    assert policy.history.rows[0].action_ranges() == [] and response["extra_logs"]["token_mismatch"] == 1
    assert "without log-probs" in caplog.text
    assert response["reward"] != response["reward"]  # no reward, no advantage


def test_seeds_of_turns_differ_and_the_first_is_that_of_a_single_turn():
    _, engine, _, _ = roll_out_script("qwen3", [make_call("qwen3"), make_answer("qwen3")])
    seeds = [each.seed for each in engine.params]
    assert seeds[0] == 1 and len(set(seeds)) == 2
    for each in engine.params:
        assert each.logprobs == 0 and each.all_stop_token_ids == set(each.stop_token_ids) != set()


def test_number_of_samples_per_rollout_is_limited():
    script = [make_thought("qwen3", str(i)) + make_answer("qwen3") for i in range(4)]
    policy, _, _, response = roll_out_script("qwen3", script, Library(replies=["a", "b", "c"]), max_rows=2)
    assert len(policy.history.rows) == 4 and len(response["branches"]) == 1
    assert response["extra_logs"]["branches_dropped"] == 2


def test_an_edit_late_in_a_long_text_is_named_before_the_test_times_out():
    template = template_for(TOKENIZERS["qwen3"])
    history, words = RolloutHistory(template.codec), "hello world " * 20_000
    history.prompt(template.render([{"role": "user", "content": words}]))
    history.add([1], [-1.0])
    history.prompt(template.render([{"role": "user", "content": words[:-6] + "WORLD "}]))
    history.add([1], [-1.0])
    (why,) = history.differences
    assert "sampled ' world <|im_end|>" in why  # the token holds the space too
    assert "rendered 'WORLD" in why


def build_composing(dialect):
    made = build(dialect)
    made.backend_tokenizer.normalizer = normalizers.NFC()
    return made


COMPOSED = build_composing("qwen3")


@pytest.mark.parametrize("prompt", ["cafe\u0301 \u1100\u1161 a\u0308b\u0323", "\u212b and \u2126", "\u0301 first"])
@pytest.mark.parametrize("said", ["42", "e\u0301 as sampled"])
def test_text_that_the_tokenizer_composes_begins_no_branch(prompt, said, monkeypatch):
    """As Qwen3's does. The engine may sample what it would not encode: a letter, then its accent."""
    monkeypatch.setitem(TOKENIZERS, "qwen3", COMPOSED)
    environment = Library(prompt=prompt, prefix=prompt, replies=["e\u0301?", "\u0301?"])
    for seed in range(5):
        script = [
            make_call("qwen3", "cafe\u0301"),
            make_answer("qwen3", said),
            make_call("qwen3"),
            make_answer("qwen3"),
        ]
        policy, engine, outcome, _ = roll_out_script("qwen3", script, environment, seed=seed)
        assert outcome.turns >= 4 and policy.history.differences == []
        assert_exact(policy, engine)
        environment.replies = ["e\u0301?", "\u0301?"]


@pytest.mark.parametrize("prompt", ["q", "cafe\u0301"])
@pytest.mark.parametrize("accent", ["\u0301", "\u0301 and on"])
def test_a_cut_text_that_the_tokenizer_composes_is_extended(prompt, accent):
    template = template_for(build_composing("plain"))
    history, talk = RolloutHistory(template.codec), [{"role": "user", "content": prompt}]
    before = history.prompt(template.render(talk))
    sampled = [token for text in ("half of e", accent) for token in template.codec.encode_text(text)]
    history.add(sampled, [-1.0] * len(sampled))
    talk += [template.parse(sampled), {"role": "user", "content": "go on"}]
    after = history.prompt(template.render(talk))
    assert after[: len(before) + len(sampled)] == before + sampled
    end = "<|endoftext|>\n\n[user]\ngo on\n\n[assistant]\n"
    assert template.codec.decode(after[len(before) + len(sampled) :]) == end


@pytest.mark.parametrize("change", [("cafe\u0301", "cafe"), ("cafe\u0301", "cafe\u0300"), ("cafe", "cafe\u0301")])
def test_an_edit_of_an_accent_begins_a_branch(change, monkeypatch):
    monkeypatch.setitem(TOKENIZERS, "qwen3", COMPOSED)
    template = template_for(COMPOSED)
    history, (before, after) = RolloutHistory(template.codec), change
    first = history.prompt(template.render([{"role": "user", "content": before}]))
    history.add([1], [-1.0])
    history.prompt(template.render([{"role": "user", "content": after}]))
    history.add([1], [-1.0])
    (why,) = history.differences
    assert int(why.split()[1].rstrip(",")) <= first.index(template.codec.added["<|im_end|>"])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_history_that_was_cut_short_begins_a_branch(dialect):
    codec = template_for(TOKENIZERS[dialect]).codec
    history = RolloutHistory(codec)
    history.prompt(codec.structure("hello"))
    history.add(codec.encode_text(" world"), [-1.0] * len(codec.encode_text(" world")))
    for shorter in ("hello", ""):
        assert history.prompt(codec.structure(shorter)) == codec.encode_text(shorter)
