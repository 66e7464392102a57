"""The experts that a real engine records are those that transformers' own router chooses for the same tokens.

Near a tie they may differ, since the engine rounds to bf16. How near is simulated; see rounding.py. The routers' inputs
come from a pass in float32 with the recorded routing: where one choice differs, all later layers have other inputs.

Other tests make up the routing that they replay; only an engine records one.
"""

import asyncio
import os
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoTokenizer
from vllm import SamplingParams

from benchmarks.engine_speed import make_actor
from grpo.lora import adapter
from grpo.model import routing
from grpo.rollout import budget_executor
from grpo.rollout.engine import ids_only
from grpo.rollout.harmony import template_for
from grpo.rollout.multi_turn import EnginePolicy, RolloutLimits, roll_out
from grpo.rollout.stage import mark_recorded
from grpo.rollout.thinking import environment
from tests.grpo.environments.scripted import Library

from .rounding import bound_differences, load_reference_model, simulate
from .trainer_and_engines import make_compiling_environment

LENGTH, SAMPLES = 480, 4
QUESTION = [{"role": "user", "content": "What is 3 + 9? " * 20}]  # longer than a block of the CPU's cache, 128 tokens


class Single:
    """One call, of which it keeps how much of the prompt was in the prefix cache."""

    cached: list[int]

    def __init__(self):
        self.cached = []

    async def execute(self, prompt, sampling_params, hf_tokenizer, llm_engine, **_):
        ids = hf_tokenizer.encode(prompt, add_special_tokens=False)
        output = await llm_engine.generate(ids, ids_only(sampling_params))
        self.cached.append(output.num_cached_tokens)
        return {"observation_tokens": [*ids, *output.outputs[0].token_ids]}


class Conversation:
    """Three turns, with a user who answers twice."""

    async def execute(self, sampling_params, hf_tokenizer, llm_engine, **_):
        policy = EnginePolicy(template_for(hf_tokenizer), llm_engine, sampling_params, LENGTH)
        user = Library(QUESTION[0]["content"], replies=["and 4 + 5?", "and 7 + 8?"])
        limits = RolloutLimits(turns=3, seconds=300, tool_seconds=20, score_seconds=60)
        _, response = await roll_out(lambda: user, policy, limits, 9)
        return response


@dataclass
class Engine:
    actor: object
    tokenizer: object
    loop: asyncio.Runner

    def draw_responses(self, executor, prompts: int = 1, **params) -> list[dict]:
        """The responses to a prompt, drawn `prompts` times, one after the other."""
        self.actor.executor = executor
        prompt = self.tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
        asked = {"max_tokens": 24, "min_tokens": 20, "seed": 1, "logprobs": 0, **params}

        async def draw():
            made = []
            for _ in range(prompts):
                named = mark_recorded(SamplingParams(**asked))
                made += await self.actor.generate_responses(prompt, "", named, LENGTH, self.tokenizer, SAMPLES)
            return made

        return self.loop.run(draw())


@pytest.fixture(scope="module", params=[(1, False), (2, True)], ids=["compiled", "tp2"])
def engine(request, tiny_model):
    tensor_parallel, eager = request.param
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {} if eager else make_compiling_environment().items():
            patch.setenv(name, value)
        patch.setitem(os.environ, "VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # as OpenRLHF sets it
        config = {"lora_rank": 8, "lora_scale": 2.0, adapter.RECORDS: adapter.ALL}
        actor = make_actor(
            tiny_model / "bf16", 2 * SAMPLES, LENGTH, "auto", eager, tensor_parallel_size=tensor_parallel,
            worker_extension_cls="grpo.lora.vllm_lora.AdapterWorker", additional_config=config,
        )  # fmt: skip
        with asyncio.Runner() as loop:
            yield Engine(actor, AutoTokenizer.from_pretrained(tiny_model / "mxfp4"), loop)
        actor.llm.shutdown()


@pytest.fixture(scope="module")
def reference(tiny_model):
    return load_reference_model(tiny_model / "mxfp4")


def read_choices(model, sample) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the recorded routing, the model's own one, and where a choice is no near tie, without the last token."""
    tokens, recorded = sample["observation_tokens"], torch.from_numpy(sample["routing"])
    routers = [layer.mlp.router for layer in model.model.layers]

    @torch.no_grad()
    def compute_logits() -> torch.Tensor:
        seen = []
        hooks = [
            router.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(0, -2)))
            for router in routers
        ]
        with routing.replay_choices(model, [recorded], len(tokens), "cpu"):
            model(torch.tensor([tokens]))
        for hook in hooks:
            hook.remove()
        pairs = zip(routers, seen, strict=True)
        return torch.stack([torch.nn.functional.linear(x, r.weight, r.bias) for r, x in pairs], dim=1)

    exact, chosen = compute_logits(), recorded.shape[-1]
    values, experts = exact.sort(dim=-1, descending=True)
    apart = bound_differences(simulate(model, compute_logits)).amax(-1)
    is_clear = values[..., chosen - 1] - values[..., chosen] > apart
    own = routing.encode(experts[..., :chosen]).sort().values
    return recorded[:-1].sort().values, own[:-1], is_clear[:-1]


def check(model, responses: list[dict]) -> None:
    """Check each sample and branch, and that a shift by one token would be noticed."""
    for sample in [part for response in responses for part in (response, *response.get("branches", ()))]:
        assert (sample["routing"][:-1] > 0).all(), "a token has no routing"
        recorded, own, is_clear = read_choices(model, sample)
        assert is_clear.float().mean() > 0.5, "nearly all are near ties: the comparison would prove nothing"
        assert torch.equal(recorded[is_clear], own[is_clear])
        for shifted in (recorded.roll(1, dims=0), recorded.roll(-1, dims=0)):
            assert (shifted != own)[is_clear].any(-1).float().mean() > 0.1


@pytest.mark.timeout(900)
def test_single_calls_also_with_their_prompt_in_the_prefix_cache(engine, reference):
    single = Single()
    responses = engine.draw_responses(single, prompts=2)
    assert max(single.cached[:1]) == 0 and min(single.cached[SAMPLES:]) > 0
    check(reference, responses)


@pytest.mark.timeout(900)
def test_answers_after_a_cut_thought(engine, reference, monkeypatch):
    for name, value in environment(6, 12, "harmony", "").items():
        monkeypatch.setenv(name, value)
    responses = engine.draw_responses(budget_executor.AgentExecutor(), min_tokens=1, max_tokens=120)
    assert any(response["extra_logs"]["thinking_truncated"] for response in responses)
    assert engine.actor.get_num_unfinished_requests() == 0, "a call that was given up is still there"
    check(reference, responses)


@pytest.mark.timeout(900)
def test_turns_and_branches_of_a_conversation(engine, reference):
    responses = engine.draw_responses(Conversation(), min_tokens=1, max_tokens=120)
    assert any(len(sample["action_ranges"]) > 1 or sample["branches"] for sample in responses)
    check(reference, responses)


@pytest.mark.timeout(900)
def test_taken_and_aborted_routings_leave_nothing(engine):
    name = "of-nobody"
    params = SamplingParams(max_tokens=4, extra_args={"routing_of": name})

    async def take_calls():
        await engine.actor.generate([1, 2, 3], params)
        first = await engine.actor.llm.collective_rpc("take_routing", args=([name],))
        second = await engine.actor.llm.collective_rpc("take_routing", args=([name],))
        await engine.actor.generate([1, 2, 3], params)
        await engine.actor.llm.collective_rpc("forget_routing")
        third = await engine.actor.llm.collective_rpc("take_routing", args=([name],))
        return [[len(answer["calls"][0]) for answer in each if answer] for each in (first, second, third)]

    assert engine.loop.run(take_calls()) == [[1], [0], [0]]
