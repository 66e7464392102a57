"""A rollout's samples against an engine that keeps its own books."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.rollout.harmony import template_for
from grpo.rollout.trajectory import Origin
from tests.grpo.environments.scripted import Library, assert_exact, roll_out_script
from tests.grpo.rollout.tokenizer import TOKENIZER

CODEC = template_for(TOKENIZER).codec


def make_call(query="rain"):
    return f' to=functions.search<|channel|>commentary json<|message|>{{"query": "{query}"}}<|call|>'


def make_thought(text):
    return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"


def make_answer(text="42"):
    return f"<|channel|>final<|message|>{text}<|return|>"


def test_a_history_that_grows_is_one_row_of_the_policys_own_tokens():
    script = [make_thought("hm") + make_call(), make_call("sun"), make_answer()]
    policy, engine, outcome, response = roll_out_script(script)
    assert outcome.ending == "done" and len(policy.history.rows) == 1 and not response["branches"]
    assert_exact(policy, engine)
    assert engine.calls[1][0] != TOKENIZER.encode(CODEC.decode(engine.calls[1][0])), "the policy's own tokens"
    assert response["engine"]["ranges"] == response["action_ranges"] and len(response["action_ranges"]) == 3


def test_environment_and_template_tokens_are_distinguished():
    policy, _, _, response = roll_out_script([make_call(), make_answer()])
    (sample,) = policy.history.rows
    (_, end), (begin, _) = sample.action_ranges()
    said = [token for token, origin in zip(sample.tokens, sample.origins, strict=True) if origin is Origin.ENVIRONMENT]
    assert CODEC.decode(said) == "there rain" and response["extra_logs"]["environment_tokens"] == len(said)
    assert set(sample.origins[end:begin]) == {Origin.ENVIRONMENT, Origin.TEMPLATE}


def test_thinking_that_the_template_strips_begins_a_branch_and_nothing_is_trained_twice():
    script = [make_thought("hm") + make_call(), make_thought("so") + make_answer(), make_answer()]
    policy, engine, _, response = roll_out_script(script, Library(replies=["and?"]))
    first, second = policy.history.rows
    assert_exact(policy, engine)
    assert "hm" in CODEC.decode(first.tokens) and "hm" not in CODEC.decode(second.tokens)
    assert [len(sample.action_ranges()) for sample in (first, second)] == [2, 1]
    assert len(response["branches"]) == 1 and response["extra_logs"]["branches"] == 1
    (why,) = policy.history.differences
    assert "<|channel|>analysis" in why


def test_only_the_return_token_of_an_answer_changes_in_a_branch():
    policy, engine, _, _ = roll_out_script([make_answer("hell o"), make_answer("43")], Library(replies=["and?"]))
    first, second = policy.history.rows
    assert CODEC.decode(first.tokens[-1:]) == "<|return|>"
    size = len(first.tokens)
    assert second.tokens[: size - 1] == first.tokens[:-1], "the very tokens that were sampled"
    assert CODEC.decode(second.tokens[size - 1 : size]) == "<|end|>"
    assert set(second.origins[:size]) == {Origin.PROMPT}
    assert_exact(policy, engine)


class Forgetful(Library):
    async def reply(self, messages):
        if len(messages) > 4:
            return None
        del messages[1:]  # the history is rewritten
        return [{"role": "user", "content": "again"}]


def test_an_edited_history_begins_a_branch_that_keeps_the_shared_tokens():
    policy, engine, _, _ = roll_out_script([make_answer(), make_call(), make_answer()], Forgetful())
    first, second = policy.history.rows
    assert_exact(policy, engine)
    question = first.action_ranges()[0][0] - 2  # before <|start|>assistant
    assert second.tokens[:question] == first.tokens[:question] and second.tokens[question + 1] != first.tokens[question]


def test_a_turn_cut_at_any_token_ends_the_rollout_there():
    script = [make_call(), make_answer()]
    policy, engine, _, _ = roll_out_script(script)
    whole = policy.history.rows[0].tokens
    for length in range(len(engine.calls[0][0]) + 1, len(whole) + 1):
        cut, books, outcome, response = roll_out_script(script, max_length=length)
        assert cut.history.rows[-1].tokens == whole[: len(cut.history.rows[-1].tokens)]
        assert len(cut.history.rows[-1].tokens) <= length
        assert response["truncated"] == (outcome.ending == "length") == (length < len(whole))
        assert_exact(cut, books)


@given(texts=st.lists(st.sampled_from(["a", "hell", "o\n", "\n\n", "é🙂", "", "w orld ", "4"]), min_size=2, max_size=4),
       replies=st.lists(st.sampled_from(["\n", "lo", "\n\nx", "ld"]), min_size=3, max_size=3),
       seed=st.integers(0, 99))  # fmt: skip
@settings(max_examples=80)
def test_merges_across_boundaries_never_change_a_token_that_was_sampled(texts, replies, seed):
    script = [make_answer(text) for text in texts]
    policy, engine, outcome, _ = roll_out_script(script, Library(replies=replies), seed=seed)
    assert outcome.turns == 4
    assert_exact(policy, engine)
    for number, (prompt, _) in enumerate(engine.calls):
        for _, tokens in engine.calls[:number]:  # in a branch, too
            size = len(tokens) - 1
            assert tokens[:-1] in (prompt[start : start + size] for start in range(len(prompt)))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_prompt_that_the_engine_changed_begins_a_new_row(caplog, lost):
    policy, engine, _, response = roll_out_script(
        [make_call(), make_answer()],
        change=lambda prompt: prompt if len(prompt) < 100 else [*prompt[:5], 7, *prompt[6 + lost :]],
    )
    changed = [given for given, _ in engine.calls if given[5] == 7]
    assert policy.mismatches == len(changed) > 0 and response["extra_logs"]["token_mismatch"] == len(changed)
    assert "differs first at position 5, after " in caplog.text
    assert_exact(policy, engine)  # training uses the engine's tokens
    for row in policy.history.rows:
        account = row.account()
        assert account["tokens"] == row.tokens and account["ranges"] == row.action_ranges()


def test_a_turn_without_log_probs_is_counted_and_not_trained_on(caplog):
    policy, _, _, response = roll_out_script([make_answer()], log_probs=False)
    assert policy.history.rows[0].action_ranges() == [] and response["extra_logs"]["token_mismatch"] == 1
    assert "without log-probs" in caplog.text
    assert response["reward"] != response["reward"]  # no reward, no advantage


def test_seeds_of_turns_differ_and_the_first_is_that_of_a_single_turn():
    _, engine, _, _ = roll_out_script([make_call(), make_answer()])
    seeds = [each.seed for each in engine.params]
    assert seeds[0] == 1 and len(set(seeds)) == 2
    for each in engine.params:
        assert each.logprobs == 0 and each.all_stop_token_ids == set(each.stop_token_ids) != set()


def test_number_of_samples_per_rollout_is_limited():
    script = [make_thought(str(i)) + make_answer() for i in range(4)]
    policy, _, _, response = roll_out_script(script, Library(replies=["a", "b", "c"]), max_rows=2)
    assert len(policy.history.rows) == 4 and len(response["branches"]) == 1
    assert response["extra_logs"]["branches_dropped"] == 2


def test_a_score_reads_how_much_the_model_has_sampled():
    class Costly(Library):
        read: tuple = ()

        async def call(self, name, arguments):
            self.read += (self.sampled_tokens,)
            return await super().call(name, arguments)

        async def score(self, messages, ending):
            self.read += (self.sampled_tokens,)
            return await super().score(messages, ending)

    environment = Costly(prefix="there " * 99)
    _, engine, _, response = roll_out_script([make_call(), make_answer()], environment)
    first, second = (len(tokens) for _, tokens in engine.calls)
    assert environment.read == (first, first + second) and response["extra_logs"]["rollout_tokens"] == first + second
