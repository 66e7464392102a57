"""Trainer and engines agree on the log-probs of the same tokens after a sync, and a wrong adapter is noticed.

Real Ray, DeepSpeed and vLLM: a ZeRO-3 actor on two ranks with parameter offload; an engine with TP=2 through Ray's
executor, and one that is compiled in pieces, both as on GPUs; the tiny model. Eager engines with TP=1 are compared in
test_end_to_end.py and test_evaluate.py.
"""

import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from transformers import AutoTokenizer

from grpo.metrics.parity import PolicyMismatch
from grpo.metrics.scored_rollouts import Rollout, compare
from grpo.run.parity_gate import ParityGate

from . import ray_on_cpu
from .rounding import Rounding, bound_differences, compute_distributions, load_reference_model, pick_log_probs, simulate
from .trainer_and_engines import (
    LONGEST,
    Stack,
    call_on_engine,
    choose_other_experts,
    choose_own_experts,
    parse_training_args,
    restore_frequencies,
    round_frequencies,
    send,
)

LONG = 900  # positions at which bf16 rotary frequencies would be far off
ENDS = 8  # of the long text, without 0, 1, 2, ... of its last tokens: what follows one of them may be certain


@pytest.fixture(scope="module")
def executor_on_cpu(tmp_path_factory):
    """Engines that are started from here on run their workers through Ray's executor."""
    folder = tmp_path_factory.mktemp("platform")
    ray_on_cpu.install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def stack(tiny_model, executor_on_cpu, ray_cluster, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        checkpoints = tmp_path_factory.mktemp("run") / "checkpoints"
        args = parse_training_args(patch, "--pretrain", str(tiny_model / "mxfp4"), "--ckpt_path", str(checkpoints))
        yield Stack(args, tiny_model)


@pytest.fixture(scope="module")
def texts(stack, tiny_model) -> list[list[int]]:
    """Token ids of texts that the engines sample from their own adapter, and of one long text."""
    from vllm import SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "mxfp4")
    prompts = [f"What is {a} + {3 * a}?" for a in range(3, 11)]
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=1, logprobs=0)
    outputs = ray.get([stack.engines[0].generate.remote(prompt, params) for prompt in ids])
    sampled = [prompt + list(output.outputs[0].token_ids) for prompt, output in zip(ids, outputs, strict=True)]
    return [*sampled, [token for text in sampled * 10 for token in text][:LONG]]


def list_ends(text: list[int]) -> list[list[int]]:
    return [text[: len(text) - cut] for cut in range(ENDS)]


@pytest.fixture(scope="module")
def synced_log_probs(stack, texts) -> torch.Tensor:
    """After a sync with a non-zero adapter: the trainer's log-probs of all texts, one after the other."""
    before = stack.compute_engine_log_probs(stack.engines[0], texts[0])
    stack.stale = [[stack.draw_next_token(engine, end)[0] for end in list_ends(texts[-1])] for engine in stack.engines]
    stack.randomise(0.08)
    after = stack.compute_engine_log_probs(stack.engines[0], texts[0])
    assert (before - after).abs().mean() > 0.1, "the adapter changes nothing: the comparison would prove nothing"
    return torch.cat([stack.compute_trainer_log_probs(text) for text in texts])


@pytest.fixture(scope="module")
def reference(stack, synced_log_probs, tiny_model) -> torch.nn.Module:
    """transformers and PEFT in float32, with the adapter that the trainer saves."""
    ray.get(stack.trainer.async_run_method("save", states={"global_step": 7}))
    return load_reference_model(tiny_model / "mxfp4", Path(stack.args.ckpt_path) / "step_7" / "adapter")


@pytest.fixture(scope="module")
def passes(reference, texts) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A pass in float32, then simulated ones in bf16: the log-probs of all texts, and of what may follow the ends."""

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        after = compute_distributions(reference, texts)
        log_probs = [pick_log_probs(text, values) for text, values in zip(texts, after, strict=True)]
        return torch.cat(log_probs), after[-1][-ENDS:].flip(0)

    return [compute(), *simulate(reference, compute)]


@pytest.fixture(scope="module")
def rounding(passes) -> Rounding:
    exact, *rounded = (of_texts for of_texts, _ in passes)
    return Rounding.measure(exact, rounded)


@pytest.fixture(scope="module")
def allowed_differences(passes) -> torch.Tensor:
    """How far two implementations may be apart on each token that may follow an end, `[ENDS, vocabulary]`."""
    return bound_differences([after for _, after in passes[1:]])


@pytest.mark.timeout(900)
def test_the_workers_of_an_engine_run_in_ray_as_on_gpus(stack):
    def get_executor(engine) -> str:
        return engine.llm.vllm_config.parallel_config.distributed_executor_backend

    assert [call_on_engine(engine, get_executor) for engine in stack.engines] == ["ray", "uni"]


@pytest.mark.timeout(900)
def test_the_second_engine_is_compiled_in_pieces_as_on_gpus(stack):
    def read_compilation(engine) -> tuple[str, str]:
        return engine.llm.vllm_config.compilation_config.mode.name, os.environ["TORCHDYNAMO_DISABLE"]

    assert [call_on_engine(engine, read_compilation) for engine in stack.engines] == [
        ("NONE", "1"),
        ("VLLM_COMPILE", "0"),
    ]


@pytest.mark.timeout(900)
def test_the_trainer_uses_what_it_saves(synced_log_probs, passes, rounding):
    assert rounding.covers(synced_log_probs, passes[0][0])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [0, 1], ids=["tp2", "compiled"])
def test_engine_agrees_with_trainer(stack, texts, synced_log_probs, rounding, number):
    engine = torch.cat([stack.compute_engine_log_probs(stack.engines[number], text) for text in texts])
    assert rounding.covers(synced_log_probs, engine)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [0, 1], ids=["tp2", "compiled"])
def test_a_sync_drops_the_prefix_cache(stack, texts, synced_log_probs, allowed_differences, number):
    engine, stale = stack.engines[number], stack.stale[number]
    exact = [stack.draw_next_token(engine, end, cached=False)[0] for end in list_ends(texts[-1])]
    fresh = [stack.draw_next_token(engine, end)[0] for end in list_ends(texts[-1])]
    _, from_cache = stack.draw_next_token(engine, texts[-1])
    assert from_cache >= LONG // 2, "the cache is not used: the comparison would prove nothing"

    def is_rounding(one: dict[int, float], other: dict[int, float], apart: torch.Tensor) -> bool:
        common = one.keys() & other.keys()
        return len(common) >= 3 and all(abs(one[token] - other[token]) <= apart[token] for token in common)

    assert all(map(is_rounding, exact, fresh, allowed_differences))
    assert not all(map(is_rounding, exact, stale, allowed_differences)), "the adapter changes nothing"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("factor", [0.0, 2.0], ids=["dropped", "doubled"])
@pytest.mark.parametrize(
    "name",
    [
        "0.self_attn.q_proj.lora_A",
        "1.self_attn.k_proj.lora_B",
        "2.self_attn.v_proj.lora_A",
        "2.self_attn.o_proj.lora_B",
        "1.mlp.experts.base_layer.lora_B",
        "2.mlp.experts.lora_A",
    ],
)
def test_one_wrong_tensor_is_noticed(stack, texts, synced_log_probs, rounding, name, factor):
    flat, specs = stack.gather_adapter()
    spec = next(spec for spec in specs if name in spec.name)
    wrong = flat.clone()
    wrong[spec.offset : spec.offset + spec.numel] *= factor
    for number in (0, 1):
        send(stack.engines[number], wrong, specs)
        engine = torch.cat([stack.compute_engine_log_probs(stack.engines[number], text) for text in texts])
        send(stack.engines[number], flat, specs)
        assert not rounding.covers(synced_log_probs, engine), f"engine {number}: {name} x {factor} went unnoticed"


def test_engines_never_sample_unallocated_rows(stack, texts, reference):
    """Not even if a request favors these rows over all others."""
    from vllm import SamplingParams

    rows, reserved = reference.kept
    masked = {*range(rows, reference.config.vocab_size), *reserved}
    assert len(masked) > len(reserved) > 0
    favored = {row: 100.0 for row in masked}
    params = SamplingParams(max_tokens=8, min_tokens=8, logit_bias=favored, seed=1)
    outputs = ray.get([engine.generate.remote(texts[0], params) for engine in stack.engines])
    assert not masked & {token for output in outputs for token in output.outputs[0].token_ids}


@pytest.mark.timeout(900)
def test_rope_is_fp32_in_the_trainer(stack):
    dtypes = stack.call_every_rank(
        lambda actor: [str(b.dtype) for n, b in actor.actor.model.module.named_buffers() if "inv_freq" in n]
    )
    assert dtypes == [["torch.float32"], ["torch.float32"]]


# The parity gate


@pytest.fixture(scope="module")
def prompts(stack, synced_log_probs, texts) -> list[list[int]]:
    """Beginnings of the texts, after a sync with a smaller adapter: less of what follows hangs on ties of routers."""
    stack.randomise(0.04)
    return [text[:length] for text in texts[:-1] for length in range(10, 21, 2)]


def find_problems(stack, prompts: list[list[int]], engines: tuple[int, ...] = (0, 1)) -> list[str]:
    comparison = compare(stack.make_rollouts(prompts, engines))
    print(*comparison.table(), sep="\n")
    return [problem.what for problem in comparison.problems(limit=0.05)]


@pytest.mark.timeout(900)
def test_the_gate_lets_agreement_pass(stack, prompts):
    assert find_problems(stack, prompts) == []


def divide_by(stack, temperature: float) -> None:
    """Change the trainer's temperature."""
    stack.call_every_rank(lambda actor: setattr(actor.actor, "temperature", temperature))


@pytest.mark.timeout(900)
def test_the_gate_notices_another_temperature(stack, prompts):
    divide_by(stack, 0.9)
    noticed = find_problems(stack, prompts)
    divide_by(stack, 1.0)
    assert any("times the trainer's" in what for what in noticed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["not applied", "slices swapped"])
def test_the_gate_notices_an_adapter(stack, prompts, fault):
    flat, specs = stack.gather_adapter()
    wrong = torch.zeros_like(flat) if fault == "not applied" else flat.clone()
    for spec in specs if fault == "slices swapped" else ():
        if "lora_B" in spec.name and "o_proj" not in spec.name:  # the rows of these belong to TP ranks
            part = slice(spec.offset, spec.offset + spec.numel)
            wrong[part] = torch.cat(flat[part].chunk(2)[::-1])
    send(stack.engines[0], wrong, specs)
    noticed = find_problems(stack, prompts)
    send(stack.engines[0], flat, specs)
    assert any(what.startswith("engine 0: ") for what in noticed)
    if fault == "not applied":
        assert any(what.startswith("engine 0: nearer to the model without its adapter") for what in noticed)
    assert not any(what.startswith("engine 1") for what in noticed)


@pytest.mark.timeout(900)
def test_the_gate_notices_a_stale_prefix_cache(stack, prompts, texts):
    def keep_the_cache(engine, is_kept: bool) -> None:
        async def do_nothing() -> bool:
            return True

        if is_kept:
            engine.llm.reset_prefix_cache = do_nothing
        else:
            del engine.llm.reset_prefix_cache

    flat, specs = stack.gather_adapter()
    shortest = LONG - 60 - sum(map(len, texts[:-1]))  # the long text repeats the others
    assert shortest > 3 * 128, "fewer than three blocks of the CPU's cache"
    engine, long = stack.engines[0], [texts[-1][: shortest + extra] for extra in range(48)]
    assert not any(what.startswith("engine 0") for what in find_problems(stack, long, engines=(0,)))
    send(engine, torch.zeros_like(flat), specs)
    stack.draw_next_token(engine, long[-1])
    call_on_engine(engine, keep_the_cache, True)
    send(engine, flat, specs)
    noticed = find_problems(stack, long, engines=(0,))
    call_on_engine(engine, keep_the_cache, False)
    send(engine, flat, specs)
    assert any(what.startswith("engine 0") for what in noticed)


@pytest.mark.timeout(900)
def test_the_gate_notices_other_sinks(stack, prompts):
    stack.add_to_sinks(4.0)
    noticed = find_problems(stack, prompts)
    stack.add_to_sinks(-4.0)
    assert any(what.startswith("all: ") for what in noticed)


@pytest.mark.timeout(900)
def test_a_failing_gate_says_whether_it_is_the_choice_of_experts(stack, prompts, tiny_model):
    """From what an engine's workers record to the message; faults are in the trainer's routers and temperature."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "mxfp4")
    asked = [[{"role": "user", "content": f"What is {a} + {3 * a}?"}] for a in range(3, 51)]
    step = stack.record_rollouts(
        tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False), tokenizer
    )
    written = []
    log = SimpleNamespace(write_parity=written.append)

    def check() -> None:
        ParityGate(stack.args, stack.trainer, stack.engines[:1]).check(log, 1, *step)

    check()
    assert not written[0]["problems"] and written[0]["has_adapter"] and not written[0]["waits"]
    stack.call_every_rank(choose_other_experts)
    with pytest.raises(PolicyMismatch, match=r"it is the choice of experts: .* set ROUTING_REPLAY=1"):
        check()
    stack.call_every_rank(choose_own_experts)
    divide_by(stack, 0.7)
    with pytest.raises(PolicyMismatch, match="it is not the choice of experts: with the engines' replayed"):
        check()
    divide_by(stack, 1.0)


@pytest.mark.timeout(900)
def test_the_gate_notices_rotary_frequencies_in_bf16(stack, prompts, texts):
    """Errors grow with the distance of two tokens, so short texts are compared with a long one."""
    long = [token for text in texts[:-1] * 20 for token in text][: LONGEST - 1]
    all_texts = [*texts[:-1], long]
    sampled = [[stack.compute_engine_log_probs(engine, text) for text in all_texts] for engine in stack.engines]

    def find_text_problems() -> list[str]:
        rollouts = []
        for index, text in enumerate(all_texts):
            scored = stack.compute_trainer_log_probs(text)
            likely = (scored > -3).nonzero().flatten()  # as tokens are that an engine samples
            sides = [(of_engine[index][likely], scored[likely], scored[likely]) for of_engine in sampled]
            rollouts += [Rollout(number, 0, index, likely + 1, *three) for number, three in enumerate(sides)]
        comparison = compare(rollouts)
        print(*comparison.table(), sep="\n")
        return [problem.what for problem in comparison.problems(limit=0.05)]

    assert find_text_problems() == []
    stack.call_every_rank(round_frequencies)
    noticed = find_text_problems()
    stack.call_every_rank(restore_frequencies)
    assert any(what.startswith("all: the difference grows with the position") for what in noticed)


@pytest.mark.timeout(900)
def test_an_adapter_of_another_model_is_refused(stack, synced_log_probs):
    """The last test: the engine ends with it."""
    flat, specs = stack.gather_adapter()
    other = [asdict(spec) | {"name": spec.name.replace("layers.0.", "layers.40.")} for spec in specs]
    with pytest.raises(Exception, match="fit no layer"):
        ray.get(stack.engines[0].load_adapter.remote(flat.view(torch.uint8).numpy(), other))
