"""A thinking budget for each turn of a conversation, on an engine that streams and keeps its own books."""

import asyncio
import math
import random
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.rollout.harmony import template_for
from grpo.rollout.multi_turn import SEED_STRIDE, EnginePolicy, roll_out
from grpo.rollout.thinking import Budget, delimiter
from grpo.rollout.trajectory import Origin
from tests.grpo.environments.scripted import LIMITS, Library, encode_oddly, make_params, roll_out_script
from tests.grpo.rollout.test_history import make_answer, make_call, make_thought
from tests.grpo.rollout.tokenizer import TOKENIZER
from tests.grpo.train.made_batches import make_batches


def sample_tokens(codec, text, seed):
    """Return odd tokens of a text, but a policy's own for the words of harmony's headers."""
    tokens = []
    for run, special in codec.split(text):
        is_header = special is not None or run in ("assistant", "analysis", "final")
        tokens += codec.encode(run) if is_header else encode_oddly(codec, run, seed)
    return tokens


def is_first(params):
    """Whether a call is the first of its turn, in a rollout whose seed is 5."""
    return params.seed % SEED_STRIDE == 5


class StreamingEngine:
    """vLLM's engine: streams a text for each turn, and for each answer after a cut thought.

    Attributes:
        calls: prompt of each call, and the tokens that were read of it.
    """

    def __init__(self, codec, turns, answers, seed=0):
        self.llm, self.codec, self.seed = self, codec, seed
        self.turns, self.answers = list(turns), list(answers)
        self.calls, self.asked = [], []

    async def generate(self, prompt, params, request_id):
        texts = self.turns if is_first(params) else self.answers
        text = texts.pop(0) if len(texts) > 1 else texts[0]
        given, read = list(prompt["prompt_token_ids"]), []
        tokens = sample_tokens(self.codec, text, self.seed)[: params.max_tokens]
        number, draw = len(self.calls), random.Random(self.seed)
        self.calls.append((given, read))
        self.asked.append(params)
        while len(read) < len(tokens):
            part = tokens[len(read) : len(read) + draw.randint(1, 5)]
            choices = [
                {t: SimpleNamespace(logprob=compute_log_prob(number, len(read) + i))} for i, t in enumerate(part)
            ]
            read += part
            is_over = len(read) == len(tokens)
            stopped = is_over and tokens[-1] in params.stop_token_ids
            output = SimpleNamespace(token_ids=part, logprobs=choices, finish_reason="stop" if stopped else "length")
            yield SimpleNamespace(
                prompt_token_ids=given, outputs=[output], finished=is_over, num_cached_tokens=0,
                prompt_logprobs=[{token: SimpleNamespace(logprob=-0.5)} for token in given],
            )  # fmt: skip


def compute_log_prob(call, index):
    return -(1 + call + index / 1000)


def hold_budgeted_turns(turns, answers, budget, environment=None, max_length=4000, seed=0):
    template = template_for(TOKENIZER)
    mark = delimiter("harmony", template.codec.encode)
    engine = StreamingEngine(template.codec, turns, answers, seed)
    policy = EnginePolicy(template, engine, make_params(seed=5), max_length, (mark, Budget(*budget)))
    outcome, response = asyncio.run(roll_out(lambda: environment or Library(), policy, LIMITS, 99))
    return policy, engine, outcome, {"prompt": "where?", "label": "", **response}


# A turn that thinks, calls the tool, and one that answers
TURNS = [make_thought("hm " * 9) + make_call(), make_thought("so it is ") + make_answer("42 " * 5)]
AFTER_CUT = "42<|return|>"


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 60), st.integers(2, 60), st.integers(0, 5), st.integers(0, 9),
    st.lists(st.sampled_from(["one", "two words"]), max_size=2),
)  # fmt: skip
def test_every_turn_keeps_its_budget_and_every_token_its_log_prob(thinking, most, calls, seed, replies):
    first, last = TURNS
    policy, engine, outcome, response = hold_budgeted_turns(
        [first] * calls + [last], [AFTER_CUT], (thinking, most), Library(replies=replies), seed=seed
    )
    rows = [*response["branches"], response]
    trained = [
        (row["observation_tokens"][:start], row["observation_tokens"][start:end], row["rollout_log_probs"][start:end])
        for row in rows
        for start, end in row["action_ranges"]
    ]
    trained.sort(key=lambda part: -part[2][0])  # in the order of the calls: the log-prob tells it
    kept = [
        call for call in zip(engine.calls, range(99), strict=False) if any(part[0] == call[0][0] for part in trained)
    ]
    assert len(kept) == len(trained)
    for (prompt, tokens, log_probs), ((asked, read), number) in zip(trained, kept, strict=True):
        assert prompt == asked and tokens == read[: len(tokens)], "what was read after the cut is dropped"
        assert log_probs == [compute_log_prob(number, index) for index in range(len(tokens))]
    for turn in policy._budgeted:
        sampled = turn.trajectory.count(Origin.SAMPLED)
        assert turn.thought <= thinking + 1 and sampled - turn.thought <= most
    logs = response["extra_logs"]
    assert logs["token_mismatch"] == 0 and logs["rollout_tokens"] == sum(len(part[1]) for part in trained)
    lengths = [logs["thinking_length"], logs["answer_length"]]
    assert sum(length for length in lengths if not math.isnan(length)) == logs["rollout_tokens"]
    assert logs["thinking_truncated"] == (not all(map(is_first, engine.asked)))
    assert outcome.turns == len(policy._budgeted)


def test_a_turn_that_is_cut_answers_and_the_trainer_agrees_with_the_engine(monkeypatch):
    """gpt-oss thinks for 40 tokens, is cut, answers, is asked again, and calls a tool in time."""
    turns = [
        make_thought("hm " * 99) + make_call(),
        make_call("sun"),
        make_answer(),
    ]
    _, engine, outcome, response = hold_budgeted_turns(turns, ["41<|return|>"], (40, 40), Library(replies=["sure?"]))
    assert [message["role"] for message in outcome.messages] == [
        "user", "assistant", "user", "assistant", "tool", "assistant"
    ]  # fmt: skip
    assert outcome.messages[1]["content"] == "41" and outcome.messages[1]["reasoning_content"].startswith("hm")
    seeds = [params.seed for params in engine.asked]
    assert len(set(seeds)) == 4 and seeds[0] == 5
    plain = roll_out_script([make_answer()])[3]
    scored = [one | {"prompt": "where?", "label": "", "scores": 1.0, "reward": reward, "sampled_by": None}
              for one, reward in ((response, 1.0), (plain, 0.0))]  # fmt: skip
    (mine, _), _ = make_batches(scored, monkeypatch)
    assert mine.info["token_mismatch"] == 0 and mine.info["reward_missing"] == 0


def test_without_room_for_the_delimiter_and_an_answer_a_rollout_ends_by_length():
    _, engine, outcome, _ = hold_budgeted_turns(TURNS, ["41<|return|>"], (50, 20), max_length=10)
    assert outcome.ending == "length" and not engine.calls
