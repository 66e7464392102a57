import asyncio

import numpy as np
from vllm import SamplingParams

from grpo.rollout import routing
from grpo.rollout.engine import ids_only

SHAPE = (2, 2)


def make_call(tokens, first=1):
    """A call that was fed tokens; the choices count up from `first`."""
    choices = np.arange(first, first + len(tokens), dtype=np.uint8)
    return np.array(tokens, np.int32), np.broadcast_to(choices[:, None, None], (len(tokens), *SHAPE))


def pick_layer_0(routing_of):
    return routing_of[:, 0, 0].tolist()


def test_the_first_call_that_computed_a_position_counts():
    calls = [make_call([5, 6, 7], 1), make_call([5, 6, 7, 8, 9], 101)]
    assert pick_layer_0(routing.assemble_choices([5, 6, 7, 8, 9, 4], calls, SHAPE)) == [1, 2, 3, 104, 105, 0]


def test_a_branch_takes_only_what_depends_on_its_own_tokens():
    calls = [make_call([5, 6, 7, 8], 1), make_call([5, 6, 3, 8], 101)]
    assert pick_layer_0(routing.assemble_choices([5, 6, 3, 8, 2], calls, SHAPE)) == [1, 2, 103, 104, 0]


def test_tokens_off_by_one_have_no_routing():
    tokens = [5, 6, 7, 8, 9]
    assert pick_layer_0(routing.assemble_choices(tokens, [make_call(tokens[1:])], SHAPE)) == [0] * 5
    assert pick_layer_0(routing.assemble_choices(tokens, [make_call([5, *tokens])], SHAPE)) == [1, 0, 0, 0, 0]


def test_samples_of_a_prompt_have_names_that_calls_keep():
    params = routing.mark_recorded(SamplingParams(seed=1))
    names = {routing.make_sample_params(params, number).extra_args["routing_of"] for number in range(3)}
    again = routing.mark_recorded(SamplingParams(seed=1))
    names |= {routing.make_sample_params(again, number).extra_args["routing_of"] for number in range(3)}
    assert len(names) == 6
    mine = routing.make_sample_params(params, 1)
    assert ids_only(mine).extra_args == mine.extra_args


class Engine:
    """Answers as the workers of an engine with TP=2 do."""

    def __init__(self):
        self.llm, self.asked = self, []

    async def collective_rpc(self, method, args=()):
        self.asked.append((method, args))
        calls = [[tuple(part.tobytes() for part in make_call([5, 6]))] for _ in args[0]]
        return [{"shape": list(SHAPE), "calls": calls}, None]


def test_responses_and_their_branches_get_the_routing_of_their_sample():
    engine, params = Engine(), routing.mark_recorded(SamplingParams())
    responses = [
        {"observation_tokens": [5, 6, 7], "branches": [{"observation_tokens": [5, 9]}]},
        {"observation_tokens": [5, 6]},
    ]
    made = routing.add_routing(responses, asyncio.run(routing.take(engine, params, 2)))
    samples = [made[0], made[0]["branches"][0], made[1]]
    assert [pick_layer_0(sample["routing"]) for sample in samples] == [[1, 2, 0], [1, 0], [1, 2]]
    [(method, (names,))] = engine.asked
    assert method == "take_routing" and names == [
        routing.make_sample_params(params, n).extra_args["routing_of"] for n in (0, 1)
    ]


def test_without_a_record_nothing_is_asked():
    engine, responses = Engine(), [{"observation_tokens": [5]}]
    recorded = asyncio.run(routing.take(engine, SamplingParams(), 1))
    assert routing.add_routing(responses, recorded) == [{"observation_tokens": [5]}]
    assert not engine.asked
    assert routing.make_sample_params(SamplingParams(seed=1), 1).extra_args is None
