"""Trainer and engines agree on the log-probs of the same tokens after a sync, and a wrong adapter is noticed.

Real Ray, DeepSpeed and vLLM: a ZeRO-3 actor on two ranks with parameter offload; an engine with TP=2 through Ray's
executor, and one that is compiled in pieces, both as on GPUs; the tiny model. Eager engines with TP=1 are compared in
test_end_to_end.py and test_evaluate.py, and each finding of the parity gate in tests/grpo/metrics and tests/grpo/run.

Only here are tensor parallelism through Ray and compiled engines compared with the trainer.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray
import torch
from ray._private import parameter
from transformers import AutoTokenizer

from benchmarks.sync import start_ray
from grpo.launch.supervise import processes
from grpo.metrics.parity import compare
from grpo.stack import zygote
from tests.supervised import is_alive

from . import ray_on_cpu
from .rounding import Rounding, compute_log_probs, load_reference_model, simulate
from .runs import wait_for
from .trainer_and_engines import (
    Stack,
    call_on_engine,
    parse_training_args,
    restore_frequencies,
    round_frequencies,
    send,
)

DRIVER = """
import sys
from openrlhf.cli import train_ppo_ray
from grpo.stack import zygote
zygote.start()
print("started", flush=True)
sys.stdin.read()
"""
LONG = 900  # positions at which bf16 rotary frequencies are far off


@pytest.fixture(scope="module")
def executor_on_cpu(tmp_path_factory):
    """Engines that are started from here on run their workers through Ray's executor."""
    folder = tmp_path_factory.mktemp("platform")
    ray_on_cpu.install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def forking_cluster(executor_on_cpu):
    """A Ray cluster whose workers are forks, as in a run. Started on its own, each would take half a GB."""
    with tempfile.TemporaryDirectory(prefix="ray-test-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(zygote.VARIABLE, f"{folder}/zygote")
        # Workers are forked when they are needed. Ray's default niceness of 15 would starve them on a busy machine.
        for name in ("RAY_prestart_worker_first_driver", "RAY_enable_worker_prestart", "RAY_worker_niceness"):
            patch.setenv(name, "0")
        patch.setattr(parameter, "RayParams", partial(parameter.RayParams, setup_worker_path=zygote.__file__))
        with start_ray(Path(folder), cpus=16, gpus=8):
            [raylet] = [child for child in psutil.Process().children() if child.name() == "raylet"]
            variables = raylet.environ() | {"RAY_RAYLET_PID": str(raylet.pid), "RAY_JOB_ID": zygote.FIRST_JOB}
            command = [sys.executable, "-c", DRIVER]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen(command, env=variables, **pipes) as driver:
                assert "started\n" in driver.stdout
                yield
                # An engine's core is the zygote's child, so it outlives its actor.
                forks = psutil.Process(driver.pid).children(recursive=True)
                # The compiled engine is not forked: its processes descend from the raylet.
                everyone = [*forks, *raylet.children(recursive=True)]
                memory = processes.find_shared_memory(each.pid for each in everyone)
                for fork in forks:
                    with suppress(psutil.NoSuchProcess):
                        fork.kill()
                driver.stdin.close()
            wait_for(lambda: not any(is_alive(fork.pid) for fork in forks))
        processes.remove_shared_memory(memory)


@pytest.fixture(scope="module")
def stack(tiny_model, forking_cluster, tmp_path_factory):
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


@pytest.fixture(scope="module")
def synced_log_probs(stack, texts) -> torch.Tensor:
    """After a sync with a non-zero adapter: the trainer's log-probs of all texts, one after the other."""
    before = stack.compute_engine_log_probs(stack.engines[0], texts[0])
    stack.cached = [[stack.count_cached(engine, texts[-1]) for _ in range(2)] for engine in stack.engines]
    stack.randomise(0.08)
    stack.cached_after = [stack.count_cached(engine, texts[-1]) for engine in stack.engines]
    after = stack.compute_engine_log_probs(stack.engines[0], texts[0])
    assert (before - after).abs().mean() > 0.1, "the adapter changes nothing: the comparison would prove nothing"
    return torch.cat([stack.compute_trainer_log_probs(text) for text in texts])


@pytest.fixture(scope="module")
def reference(stack, synced_log_probs, tiny_model) -> torch.nn.Module:
    """transformers and PEFT in float32, with the adapter that the trainer saves."""
    ray.get(stack.trainer.async_run_method("save", states={"global_step": 7}))
    return load_reference_model(tiny_model / "mxfp4", Path(stack.args.ckpt_path) / "step_7" / "adapter")


@pytest.fixture(scope="module")
def exact(reference, texts) -> torch.Tensor:
    """The reference's log-probs of all texts, one after the other."""
    return torch.cat(compute_log_probs(reference, texts))


@pytest.fixture(scope="module")
def rounding(reference, exact, texts) -> Rounding:
    return Rounding.measure(exact, simulate(reference, lambda: torch.cat(compute_log_probs(reference, texts))))


@pytest.mark.timeout(900)
def test_engines_run_in_ray_and_compiled_as_on_gpus(stack):
    def read_config(engine) -> tuple[str, str]:
        config = engine.llm.vllm_config
        return config.parallel_config.distributed_executor_backend, config.compilation_config.mode.name

    found = [call_on_engine(engine, read_config) for engine in stack.engines]
    assert found == [("ray", "NONE"), ("uni", "VLLM_COMPILE")]


@pytest.mark.timeout(900)
def test_trainer_and_engines_agree_with_the_adapter_that_is_saved(stack, texts, synced_log_probs, exact, rounding):
    assert rounding.covers(synced_log_probs, exact)
    for engine in stack.engines:
        scored = torch.cat([stack.compute_engine_log_probs(engine, text) for text in texts])
        assert rounding.covers(synced_log_probs, scored)


@pytest.mark.timeout(900)
def test_rotary_frequencies_in_bf16_are_noticed(stack, texts, synced_log_probs, exact, rounding):
    stack.call_every_rank(round_frequencies)
    rounded = torch.cat([stack.compute_trainer_log_probs(text) for text in texts])
    stack.call_every_rank(restore_frequencies)
    assert not rounding.covers(rounded, exact)


@pytest.mark.timeout(900)
def test_a_sync_drops_the_prefix_cache(stack, synced_log_probs):
    assert all(again >= LONG // 2 for _, again in stack.cached), "without a sync, the text is in the cache"
    assert stack.cached_after == [0, 0]


@pytest.mark.timeout(900)
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
def test_one_missing_tensor_is_noticed(stack, texts, synced_log_probs, rounding, name):
    flat, specs = stack.gather_adapter()
    spec = next(spec for spec in specs if name in spec.name)
    wrong = flat.clone()
    wrong[spec.offset : spec.offset + spec.numel] = 0
    for engine in stack.engines:
        send(engine, wrong, specs)
        scored = torch.cat([stack.compute_engine_log_probs(engine, text) for text in texts])
        send(engine, flat, specs)
        assert not rounding.covers(synced_log_probs, scored)


@pytest.mark.timeout(900)
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
def test_the_gate_notices_the_engine_whose_slices_are_swapped(stack, synced_log_probs, texts):
    stack.randomise(0.04)  # a smaller adapter: less of what follows hangs on ties of routers
    prompts = [text[:length] for text in texts[:-1] for length in range(10, 21, 2)]

    def find_problems() -> list[str]:
        comparison = compare(stack.make_rollouts(prompts))
        print(*comparison.table(), sep="\n")
        return [problem.what for problem in comparison.problems(limit=0.05)]

    assert find_problems() == []
    flat, specs = stack.gather_adapter()
    wrong = flat.clone()
    for spec in specs:
        if "lora_B" in spec.name and "o_proj" not in spec.name:  # the rows of these belong to TP ranks
            part = slice(spec.offset, spec.offset + spec.numel)
            wrong[part] = torch.cat(flat[part].chunk(2)[::-1])
    send(stack.engines[0], wrong, specs)
    noticed = find_problems()
    send(stack.engines[0], flat, specs)
    assert any(what.startswith("engine 0: ") for what in noticed)
    assert not any(what.startswith("engine 1: ") for what in noticed)


@pytest.mark.timeout(900)
def test_an_adapter_of_another_model_is_refused(stack, synced_log_probs):
    """The last test: the engine ends with it."""
    flat, specs = stack.gather_adapter()
    other = [asdict(spec) | {"name": spec.name.replace("layers.0.", "layers.40.")} for spec in specs]
    with pytest.raises(Exception, match="adapter"):
        ray.get(stack.engines[0].load_adapter.remote(flat.view(torch.uint8).numpy(), other))
