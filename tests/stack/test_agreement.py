"""Trainer and engines agree on the log-probs of the same tokens after a sync, and a wrong adapter is noticed.

Real Ray, DeepSpeed and vLLM: a ZeRO-3 actor on two ranks with parameter offload; an engine with TP=2, and one that is
compiled; the tiny model. Eager engines with TP=1 are compared in test_end_to_end.py and test_evaluate.py.
"""

import argparse
import os
import runpy
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import ray
import torch
from transformers import AutoTokenizer

from grpo.lora import adapter
from grpo.lora.engine_actor import check_receipts, shared_file
from grpo.stack import cluster

from .rounding import Rounding, distributions, log_probs, most_apart, reference_model, simulate

FLAGS = [
    *("--zero_stage", "3", "--offload", "--adam_offload", "--stage3_param_persistence_threshold", "0"),
    *("--gradient_checkpointing", "--gradient_checkpointing_use_reentrant", "--attn_implementation", "eager"),
    *("--lora_rank", "8", "--lora_alpha", "16", "--target_modules", "q_proj", "k_proj", "v_proj", "o_proj"),
    *("--init_kl_coef", "0", "--advantage_estimator", "dr_grpo", "--remote_rm_url", "reward.py"),
    *("--rollout_batch_size", "8", "--n_samples_per_prompt", "8", "--micro_rollout_batch_size", "4"),
    *("--train_batch_size", "8", "--micro_train_batch_size", "1", "--max_ckpt_num", "2"),
    *("--actor_num_gpus_per_node", "2", "--vllm_num_engines", "2"),
    *("--experts", "packed", "--actor_shard", "zero3"),
    *("--loss_aggregation", "token_mean", "--old_log_probs", "trainer"),
]
LONG = 900  # positions at which bf16 rotary frequencies would be far off


def training_args(monkeypatch, *flags: str) -> argparse.Namespace:
    """Parse flags with the parser of OpenRLHF's command line, which exists only inside its `__main__` block."""
    captured = {}

    def capture(parser, *_):
        captured["parser"] = parser
        raise StopIteration

    with monkeypatch.context() as patch, pytest.raises(StopIteration):
        patch.setattr(argparse.ArgumentParser, "parse_args", capture)
        patch.setattr(sys, "argv", ["train_ppo_ray"])
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    args = captured["parser"].parse_args([*FLAGS, *flags])
    args.eps_clip_low_high = (args.eps_clip, args.eps_clip)
    return args


def randomise(actor) -> None:
    """Give the adapter values that change the log-probs much more than rounding does. Runs in every trainer rank."""
    import deepspeed
    import torch

    generator = torch.Generator().manual_seed(5)
    for name, parameter in actor.actor.model.module.named_parameters():
        if "lora_" in name:
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.08)


def compiled_kernels() -> str:
    """The folder of torch.compile's kernel cache, separate for each instruction set.

    PyTorch 2.10 reuses a cached AVX-512 kernel even if only AVX2 is allowed, and crashes.
    """
    return f"{tempfile.gettempdir()}/torchinductor-{os.getuid()}-{torch.backends.cpu.get_cpu_capability()}"


class Stack:
    """A started trainer and engines: TP=2, and one that torch.compile compiles.

    Attributes:
        stale: what each engine said of the token after the long text before the sync, see :meth:`next_token`.
    """

    stale: list[dict[int, float]]

    def __init__(self, args: argparse.Namespace, model) -> None:
        from openrlhf.trainer.ray import create_vllm_engines
        from openrlhf.trainer.ray.launcher import RayActorGroup
        from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
        from openrlhf.trainer.ray.vllm_engine import LLMRayActor
        from openrlhf.utils import get_strategy

        self.args = args
        self.engines = []
        for tensor_parallel, eager in ((2, True), (1, False)):
            with pytest.MonkeyPatch.context() as patch:
                if not eager:
                    compiling = {
                        "env_vars": {"TORCHDYNAMO_DISABLE": "0", "TORCHINDUCTOR_CACHE_DIR": compiled_kernels()}
                    }
                    patch.setattr(LLMRayActor, "options", partial(LLMRayActor.options, runtime_env=compiling))
                self.engines += create_vllm_engines(
                    1, tensor_parallel, str(model / "bf16"), 1, False, True, eager, 1024,
                    gpu_memory_utilization=0.5, adapter_config=adapter.engine_config(args),
                )  # fmt: skip
        self.trainer = RayActorGroup(1, 2, PolicyModelActor)
        refs = self.trainer.async_init_model_from_pretrained(get_strategy(args), str(model / "mxfp4"), 10, self.engines)
        ray.get(refs + cluster.engines_ready(self.engines))

    def every_rank(self, function):
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module
        return ray.get([actor.__ray_call__.remote(function) for actor in self.trainer._actor_handlers])

    def trainer_log_probs(self, tokens: list[int]) -> torch.Tensor:
        """Log-probs of tokens 1.. from the trainer, `[len - 1]`. Both ranks compute: a forward pass is collective."""
        sequence = torch.tensor([tokens])
        mask = torch.ones_like(sequence)
        refs = self.trainer.async_run_method("forward", sequence, mask[:, 1:], mask)
        return ray.get(refs)[0][0]

    def engine_log_probs(self, engine, tokens: list[int]) -> torch.Tensor:
        """The same from an engine, which scores the tokens as a prompt."""
        from vllm import SamplingParams

        output = ray.get(engine.generate.remote(tokens, SamplingParams(max_tokens=1, prompt_logprobs=0)))
        pairs = zip(tokens[1:], output.prompt_logprobs[1:], strict=True)
        return torch.tensor([at[token].logprob for token, at in pairs])

    def next_token(self, engine, tokens: list[int], cached: bool = True) -> tuple[dict[int, float], int]:
        """The log-probs of the likeliest next tokens, and how many tokens of the prompt came from the prefix cache.

        Args:
            cached: vLLM looks into the cache; it does not where the prompt's own log-probs are asked for.
        """
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, logprobs=5, prompt_logprobs=None if cached else 0, seed=1)
        output = ray.get(engine.generate.remote(tokens, params))
        at = output.outputs[0].logprobs[0]
        return {token: entry.logprob for token, entry in at.items()}, output.num_cached_tokens

    def adapter(self) -> tuple[torch.Tensor, list[adapter.TensorSpec]]:
        """The adapter as the trainer gathers it."""

        def gather(actor):
            from grpo.lora import adapter

            flat, specs = adapter.gather(actor.actor.model.module)
            return flat.cpu(), specs

        return self.every_rank(gather)[0]


@pytest.fixture(scope="module")
def stack(tiny_model, ray_cluster, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        checkpoints = tmp_path_factory.mktemp("run") / "checkpoints"
        args = training_args(patch, "--pretrain", str(tiny_model / "mxfp4"), "--ckpt_path", str(checkpoints))
        yield Stack(args, tiny_model)


@pytest.fixture(scope="module")
def texts(stack, tiny_model) -> list[list[int]]:
    """Token ids of texts that the engines sample from their own adapter, and of one long text."""
    from vllm import SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "mxfp4")
    prompts = [f"What is {a} + {3 * a}?" for a in range(3, 11)]
    ids = [
        tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
        for prompt in prompts
    ]
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=1, logprobs=0)
    outputs = ray.get([stack.engines[0].generate.remote(prompt, params) for prompt in ids])
    sampled = [prompt + list(output.outputs[0].token_ids) for prompt, output in zip(ids, outputs, strict=True)]
    return [*sampled, [token for text in sampled * 10 for token in text][:LONG]]


@pytest.fixture(scope="module")
def synced(stack, texts) -> torch.Tensor:
    """After a sync with a non-zero adapter: the trainer's log-probs of all texts, one after the other."""
    before = stack.engine_log_probs(stack.engines[0], texts[0])
    stack.stale = [stack.next_token(engine, texts[-1])[0] for engine in stack.engines]
    stack.every_rank(randomise)
    ray.get(stack.trainer.async_run_method("broadcast_to_vllm"))
    after = stack.engine_log_probs(stack.engines[0], texts[0])
    assert (before - after).abs().mean() > 0.1, "the adapter changes nothing: the comparison would prove nothing"
    return torch.cat([stack.trainer_log_probs(text) for text in texts])


@pytest.fixture(scope="module")
def reference(stack, synced, tiny_model) -> torch.nn.Module:
    """transformers and PEFT in float32, with the adapter that the trainer saves."""
    ray.get(stack.trainer.async_run_method("save_checkpoint", tag="unused", client_states={"global_step": 7}))
    return reference_model(tiny_model / "mxfp4", Path(stack.args.ckpt_path) / "step_7" / "adapter")


@pytest.fixture(scope="module")
def rounding(reference, texts) -> Rounding:
    return Rounding.simulated(reference, texts)


@pytest.fixture(scope="module")
def after_the_text(reference, texts) -> torch.Tensor:
    """How far two implementations may be apart on each token that may follow the long text."""
    return most_apart(simulate(reference, lambda: distributions(reference, texts[-1:])[0][-1]))


@pytest.mark.timeout(900)
def test_the_trainer_uses_what_it_saves(reference, texts, synced, rounding):
    assert rounding.covers(synced, torch.cat(log_probs(reference, texts)))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [0, 1], ids=["tp2", "compiled"])
def test_engine_agrees_with_trainer(stack, texts, synced, rounding, number):
    engine = torch.cat([stack.engine_log_probs(stack.engines[number], text) for text in texts])
    assert rounding.covers(synced, engine)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [0, 1], ids=["tp2", "compiled"])
def test_a_sync_drops_the_prefix_cache(stack, texts, synced, after_the_text, number):
    engine, stale = stack.engines[number], stack.stale[number]
    exact, _ = stack.next_token(engine, texts[-1], cached=False)
    fresh, _ = stack.next_token(engine, texts[-1])
    _, from_cache = stack.next_token(engine, texts[-1])
    assert from_cache >= LONG // 2, "the cache is not used: the comparison would prove nothing"

    def is_rounding(other: dict[int, float]) -> bool:
        common = exact.keys() & other.keys()
        return len(common) >= 3 and all(abs(exact[token] - other[token]) <= after_the_text[token] for token in common)

    assert is_rounding(fresh)
    assert not is_rounding(stale), "the adapter changes nothing: the comparison proves nothing"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("factor", [0.0, 1.5], ids=["dropped", "scaled"])
@pytest.mark.parametrize(
    "name",
    [
        "0.self_attn.q_proj.lora_A",
        "1.self_attn.k_proj.lora_B",
        "2.self_attn.v_proj.lora_A",
        "3.self_attn.o_proj.lora_B",
    ],
)
def test_one_wrong_tensor_is_noticed(stack, texts, synced, rounding, name, factor):
    flat, specs = stack.adapter()
    spec = next(spec for spec in specs if name in spec.name)
    wrong = flat.clone()
    wrong[spec.offset : spec.offset + spec.numel] *= factor
    for number in (0, 1):
        send(stack.engines[number], wrong, specs)
        engine = torch.cat([stack.engine_log_probs(stack.engines[number], text) for text in texts])
        send(stack.engines[number], flat, specs)
        assert not rounding.covers(synced, engine), f"engine {number}: {name} x {factor} went unnoticed"


def send(engine, flat: torch.Tensor, specs: list[adapter.TensorSpec]) -> None:
    buffer = flat.view(torch.uint8).numpy()
    receipts = ray.get(engine.load_adapter.remote(buffer, [asdict(spec) for spec in specs]))
    check_receipts([receipts], adapter.Receipt.of(flat, specs))


def test_engines_never_sample_unallocated_rows(stack, texts, reference):
    """Not even if a request favours these rows over all others."""
    from vllm import SamplingParams

    total = reference.config.vocab_size
    assert reference.rows < total
    favoured = {row: 100.0 for row in range(reference.rows, total)}
    params = SamplingParams(max_tokens=8, min_tokens=8, logit_bias=favoured, seed=1)
    outputs = ray.get([engine.generate.remote(texts[0], params) for engine in stack.engines])
    assert all(token < reference.rows for output in outputs for token in output.outputs[0].token_ids)


@pytest.mark.timeout(120)
def test_the_object_store_can_be_mapped_by_others(ray_cluster):
    """The pinned Ray keeps its store where the engines' workers find it; otherwise each engine makes a copy."""

    @ray.remote(num_cpus=0)
    def contents_through_the_file(buffer) -> bytes | None:
        shared = shared_file(buffer)
        if shared is None:
            return None
        path, offset = shared
        with open(path, "rb") as store:
            store.seek(offset)
            return store.read(len(buffer))

    data = torch.randint(0, 256, (1_000_000,), dtype=torch.uint8).numpy()
    assert ray.get(contents_through_the_file.remote(ray.put(data))) == data.tobytes()


@pytest.mark.timeout(900)
def test_an_adapter_of_another_model_is_refused(stack, synced):
    flat, specs = stack.adapter()
    other = [asdict(spec) | {"name": spec.name.replace("layers.0.", "layers.40.")} for spec in specs]
    with pytest.raises(Exception, match="fit no attention layer"):
        ray.get(stack.engines[0].load_adapter.remote(flat.view(torch.uint8).numpy(), other))


@pytest.mark.timeout(900)
def test_rope_is_fp32_in_the_trainer(stack):
    dtypes = stack.every_rank(
        lambda actor: [str(b.dtype) for n, b in actor.actor.model.module.named_buffers() if "inv_freq" in n]
    )
    assert dtypes == [["torch.float32"], ["torch.float32"]]
