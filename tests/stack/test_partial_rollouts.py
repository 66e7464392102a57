"""Rollouts of a real engine that a sync cuts: each token has the log-prob of the policy that sampled it.

transformers and PEFT compute it again in float32, with the adapter that the engine held. What rounding may explain is
simulated; see rounding.py.
"""

import asyncio
import os
from dataclasses import asdict

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer
from vllm import SamplingParams

from benchmarks.parts.tiny_engine import start_engine
from grpo.lora import adapter
from grpo.lora.engine_actor import load_into_engine
from grpo.model import loading
from grpo.rollout import budget_executor, continued
from grpo.rollout.engine import ids_only
from grpo.rollout.thinking_settings import environment

from .rounding import Rounding, compute_log_probs, load_reference_model

LENGTH, SAMPLES, SEED = 480, 4, 11
QUESTION = [{"role": "user", "content": "What is 3 + 9? " * 20}]
NAMES = [continued.name_rollout(SEED, number) for number in range(SAMPLES)]
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj"]


class Single:
    """One call, as OpenRLHF's own executor makes it."""

    async def execute(self, prompt, sampling_params, hf_tokenizer, llm_engine, **_):
        ids = hf_tokenizer.encode(prompt, add_special_tokens=False)
        output = (await llm_engine.generate(ids, ids_only(sampling_params))).outputs[0]
        values = [choices[token].logprob for token, choices in zip(output.token_ids, output.logprobs, strict=True)]
        return {
            "observation_tokens": [*ids, *output.token_ids],
            "rollout_log_probs": [0.0] * len(ids) + values,
            "truncated": output.finish_reason == "length",
        }


class Engine:
    """An engine, and adapters by the number of their policy."""

    def __init__(self, tiny_model, adapters, loop):
        self.actor = start_engine(
            tiny_model / "bf16", 2 * SAMPLES, LENGTH, "auto", worker_extension_cls="grpo.lora.side_path.AdapterWorker",
            additional_config={"lora_rank": 8, "lora_scale": 2.0},
        )  # fmt: skip
        self.vllm = self.actor.llm
        self.tokenizer = AutoTokenizer.from_pretrained(tiny_model / "mxfp4")
        self.prompt = self.tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
        self.adapters, self.loop = adapters, loop

    async def sync(self, policy: int, known: dict) -> None:
        flat, specs = self.adapters[policy]
        data = flat.view(torch.uint8).numpy()
        await load_into_engine(self.actor.llm, data, [asdict(spec) for spec in specs])
        self.actor.llm.go_on(policy, NAMES, known)

    def begin(self, policy: int, executor, **params) -> asyncio.Task:
        """Start to sample a prompt."""
        self.actor.executor, self.actor.llm = executor, continued.ContinuedLLM(self.vllm)
        self.loop.run(self.sync(policy, {}))
        return self.draw(**params)

    def draw(self, **params) -> asyncio.Task:
        asked = {"max_tokens": 60, "min_tokens": 50, "seed": SEED, "logprobs": 0, **params}
        named = continued.make_continuable(SamplingParams(**asked))
        call = self.actor.generate_responses(self.prompt, "", named, LENGTH, self.tokenizer, SAMPLES)
        return self.loop.get_loop().create_task(call)

    def cut_after(self, tokens: int) -> dict:
        """Cut once a request has so many tokens; return the calls."""
        states = self.vllm.output_processor.request_states

        async def cut() -> dict:
            while not any(len(state.detokenizer.output_token_ids) >= tokens for state in states.values()):
                await asyncio.sleep(0)
            await self.actor.llm.cut()
            return self.actor.llm.calls(NAMES)

        return self.loop.run(cut())

    def resume(self, policy: int, known: dict | None = None) -> None:
        self.loop.run(self.sync(policy, known or {}))

    def end(self, task: asyncio.Task) -> list[dict]:
        async def wait() -> list[dict]:
            return await task

        return self.loop.run(wait())


@pytest.fixture(scope="module")
def adapters(tiny_model, tmp_path_factory) -> dict[int, tuple]:
    """Of policies 1 and 2, which differ by much more than rounding: the flat adapter, its layout, PEFT's folder."""
    made = {}
    for policy in (1, 2):
        config = LoraConfig(r=8, lora_alpha=16, target_modules=MODULES)
        model = get_peft_model(loading.load_gpt_oss(tiny_model / "mxfp4"), config)
        names, parameters = adapter.adapter_parameters(model)
        generator = torch.Generator().manual_seed(policy)
        for parameter in parameters:
            values = 0.08 * torch.randn(parameter.shape, generator=generator)
            parameter.data = values.bfloat16().to(parameter.dtype)
        folder = tmp_path_factory.mktemp(f"policy-{policy}")
        model.save_pretrained(folder)
        flat = torch.cat([parameter.data.bfloat16().flatten() for parameter in parameters])
        made[policy] = flat, adapter.layout(names, [parameter.shape for parameter in parameters]), folder
    return made


@pytest.fixture(scope="module")
def references(tiny_model, adapters) -> dict[int, torch.nn.Module]:
    return {policy: load_reference_model(tiny_model / "mxfp4", folder) for policy, (*_, folder) in adapters.items()}


@pytest.fixture(scope="module")
def engine(tiny_model, adapters):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # as OpenRLHF sets it
        with asyncio.Runner() as loop:
            engine = Engine(tiny_model, {policy: made[:2] for policy, made in adapters.items()}, loop)
            yield engine
            engine.vllm.shutdown()


def check(references, responses) -> None:
    """Compare all recorded log-probs with those of the policies that are recorded, and of any other."""
    texts = [response["observation_tokens"] for response in responses]
    policies = torch.cat([torch.from_numpy(response["policies"][1:]) for response in responses])
    recorded = torch.cat([torch.tensor(response["rollout_log_probs"][1:]) for response in responses])
    is_sampled = policies >= 0
    exact = {policy: torch.cat(compute_log_probs(model, texts)) for policy, model in references.items()}
    rounding = {policy: Rounding.simulate(model, texts) for policy, model in references.items()}

    def is_explained(claimed: torch.Tensor) -> bool:
        error, values = rounding[1].error.clone(), exact[1].clone()
        error[claimed == 2], values[claimed == 2] = rounding[2].error[claimed == 2], exact[2][claimed == 2]
        often = max(each.often for each in rounding.values())
        return Rounding(error[is_sampled], often).covers(values[is_sampled], recorded[is_sampled])

    assert is_explained(policies)
    others = [torch.full_like(policies, 1), torch.full_like(policies, 2), policies.roll(4), policies.roll(-4)]
    assert not any(is_explained(other) for other in others), "another account of the policies would not be noticed"


def count_switches(response: dict) -> int:
    """How often the policy changes between sampled tokens."""
    sampled = response["policies"][response["policies"] >= 0]
    return int((np.diff(sampled) != 0).sum())


@pytest.mark.timeout(600)
def test_each_token_has_the_log_prob_of_its_own_policy(engine, references):
    task = engine.begin(1, Single())
    engine.cut_after(12)
    engine.resume(2)
    engine.cut_after(15)  # of the second requests
    engine.resume(1)
    responses = engine.end(task)
    for response in responses:
        sampled = response["policies"] >= 0
        assert count_switches(response) == 2 and 50 <= sampled.sum() <= 60
        # The last token that fits may be the one that ends the response.
        assert response["truncated"] != (response["observation_tokens"][-1] == engine.tokenizer.eos_token_id)
        assert not response["truncated"] or sampled.sum() == 60
        assert (np.array(response["rollout_log_probs"])[~sampled] == 0).all()
    check(references, responses)


@pytest.mark.timeout(600)
def test_a_thinking_budget_goes_on_over_the_cut(engine, references, monkeypatch):
    """Thinking and answer, together and each by itself, have the lengths that they would have without a cut."""
    for name, value in environment(16, 40, "harmony", "").items():
        monkeypatch.setenv(name, value)
    task = engine.begin(1, budget_executor.AgentExecutor(), min_tokens=1, max_tokens=120)
    engine.cut_after(8)
    engine.resume(2)
    responses = engine.end(task)
    assert any(response["extra_logs"]["thinking_truncated"] for response in responses)
    assert all(response["extra_logs"]["thinking_length"] <= 16 for response in responses)
    for response in responses:
        sampled = [at for start, end in response["action_ranges"] for at in range(start, end)]
        # The engine samples on until the thinking is cut. By chance the forced delimiter begins as that did, and has a
        # policy, too; only those of sampled tokens are used.
        of_sampled = np.full_like(response["policies"], -1)
        of_sampled[sampled] = response["policies"][sampled]
        response["policies"] = of_sampled
        assert (of_sampled >= 0).sum() == len(sampled) and count_switches(response) == 1
        assert response["engine"]["tokens"] == response["observation_tokens"]
    check(references, responses)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("executor", [Single, budget_executor.AgentExecutor])
def test_what_a_checkpoint_holds_is_continued_as_if_nothing_had_happened(engine, executor, monkeypatch):
    for name, value in environment(16, 40, "harmony", "").items():
        monkeypatch.setenv(name, value)
    asked = {"min_tokens": 1, "max_tokens": 120}
    task = engine.begin(1, executor(), **asked)
    saved = engine.cut_after(8)
    engine.resume(2)
    whole = engine.end(task)
    engine.begin(1, executor(), **asked).cancel()  # another process, which knows nothing of them
    engine.resume(2, saved)
    again = engine.end(engine.draw(**asked))
    assert [response["observation_tokens"] for response in again] == [r["observation_tokens"] for r in whole]
    for one, other in zip(again, whole, strict=True):
        assert one["policies"].tolist() == other["policies"].tolist()
        np.testing.assert_allclose(one["rollout_log_probs"], other["rollout_log_probs"], atol=0.05)


@pytest.mark.timeout(600)
def test_an_evaluation_runs_while_rollouts_are_cut(engine):
    task = engine.begin(1, Single())
    engine.cut_after(8)
    params = SamplingParams(max_tokens=5, min_tokens=5)
    output = engine.loop.run(engine.actor.generate([1, 2, 3], params))
    assert len(output.outputs[0].token_ids) == 5 and not task.done()
    engine.resume(2)
    assert len(engine.end(task)) == SAMPLES
