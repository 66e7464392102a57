"""The engine's choices of experts, from the workers' records to the responses of a prompt."""

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from vllm import SamplingParams

from grpo.rollout.engine import add_routing, assemble_choices, ids_only, take_routing
from grpo.rollout.stage import for_sample, mark_recorded, read_name

SHAPE = (2, 2)
TOKENS = st.lists(st.integers(5, 7), max_size=6)


def make_call(tokens, first=1):
    """A call that was fed tokens; the choices count up from `first`."""
    choices = np.arange(first, first + len(tokens), dtype=np.uint8)
    return np.array(tokens, np.int32), np.broadcast_to(choices[:, None, None], (len(tokens), *SHAPE))


def pick_layer_0(routing_of):
    return routing_of[:, 0, 0].tolist()


@given(TOKENS, st.lists(TOKENS, max_size=3))
def test_a_position_has_the_choice_of_the_first_call_that_was_fed_all_tokens_up_to_it(tokens, fed):
    calls = [make_call(each, 1 + 50 * number) for number, each in enumerate(fed)]
    expected = [
        next((1 + 50 * n + at for n, each in enumerate(fed) if each[: at + 1] == tokens[: at + 1]), 0)
        for at in range(len(tokens))
    ]
    assert pick_layer_0(assemble_choices(tokens, calls, SHAPE)) == expected


def test_rollouts_of_a_prompt_have_names_that_calls_keep():
    prompts = [mark_recorded(SamplingParams(seed=1)) for _ in range(2)]
    assert len({read_name(for_sample(params, number)) for params in prompts for number in range(3)}) == 6
    mine = for_sample(prompts[0], 1)
    assert ids_only(mine).extra_args == mine.extra_args
    assert for_sample(SamplingParams(seed=1), 1).extra_args is None


class Engine:
    """Answers as the workers of an engine with TP=2 do."""

    def __init__(self):
        self.llm, self.asked = self, []

    async def collective_rpc(self, method, args=()):
        self.asked.append((method, args))
        calls = [[tuple(part.tobytes() for part in make_call([5, 6]))] for _ in args[0]]
        return [{"shape": list(SHAPE), "calls": calls}, None]


def test_responses_and_their_branches_get_the_routing_of_their_sample():
    engine, params = Engine(), mark_recorded(SamplingParams())
    responses = [
        {"observation_tokens": [5, 6, 7], "branches": [{"observation_tokens": [5, 9]}]},
        {"observation_tokens": [5, 6]},
    ]
    made = add_routing(responses, asyncio.run(take_routing(engine, params, 2)))
    samples = [made[0], made[0]["branches"][0], made[1]]
    assert [pick_layer_0(sample["routing"]) for sample in samples] == [[1, 2, 0], [1, 0], [1, 2]]
    assert engine.asked == [("take_routing", ([read_name(for_sample(params, n)) for n in (0, 1)],))]


def test_without_a_record_nothing_is_asked():
    engine, responses = Engine(), [{"observation_tokens": [5]}]
    recorded = asyncio.run(take_routing(engine, SamplingParams(), 1))
    assert add_routing(responses, recorded) == [{"observation_tokens": [5]}] and not engine.asked
