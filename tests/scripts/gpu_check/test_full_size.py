"""The rungs at full size: which model they take, what they do with what they measure, and a tiny actor on a CPU.

Engines run in tests/stack/test_gpu_check.py.
"""

import asyncio
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.parts.random_values import fill_
from grpo.model.architecture import Architecture
from grpo.model.released import RELEASED
from grpo.stack import machine
from grpo.stack.machine import Gpu
from grpo.stack.problem import UserError
from scripts.gpu_check import actor, engine, engine_speed, full_size, one_copy, rung
from scripts.gpu_check.rung import Passed, Rung, Skipped
from tests import forked

LARGE, SMALL = "openai/gpt-oss-120b", "openai/gpt-oss-20b"
TINY = {
    "layers": 2, "hidden": 128, "heads": 4, "key_value_heads": 2, "head_dim": 32, "experts": 8, "experts_per_token": 2,
    "intermediate": 128, "vocabulary": 512, "attention_bias": True, "mxfp4": True,
}  # fmt: skip


def test_one_copy_of_the_model_is_skipped_where_vllm_rearranges_the_experts(monkeypatch) -> None:
    monkeypatch.setattr(machine, "known_gpus", lambda: [Gpu("A100", 80 * 2**30, 0, "8.0")])
    with pytest.raises(Skipped, match="capability 8"):
        one_copy.check(1)


@pytest.mark.parametrize("needed", [engine_speed.compute_needed, actor.compute_needed, one_copy.compute_needed])
def test_a_gpu_gets_the_largest_model_that_it_holds(needed) -> None:
    sizes = {84e9: LARGE, 80e9: LARGE, 64e9: SMALL, 25e9: SMALL}  # H100, A100, two cards of others
    assert {memory: full_size.fitting(memory, needed) for memory in sizes} == sizes
    with pytest.raises(Skipped, match=r"gpt-oss-20b needs \d\d GB here; the GPU has 12 GB"):
        full_size.fitting(12e9, needed)


def test_the_plan_is_that_of_the_docs() -> None:
    """docs/boxes.md: `--gpus 2`, whose table adds 1 GB and 5% of the GPU."""
    for tokens, documented in ((4096, 74.8), (16_384, 79.6)):
        assert actor.plan_bytes(RELEASED[LARGE], tokens) / 1e9 + 1 + 0.05 * 85.9 == pytest.approx(documented, abs=0.06)


def test_random_values_have_a_sensible_scale() -> None:
    def fill_values(name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        values = torch.empty(shape, dtype=dtype)
        fill_(name, values, shape[-1], torch.Generator().manual_seed(0))
        return values

    for name in ("mlp.experts.down_proj_blocks", "mlp.experts.w2_weight"):  # of transformers, of vLLM
        assert len(fill_values(name, 8, 64, 16, dtype=torch.uint8).unique()) == 256
    for name in ("mlp.experts.down_proj_scales", "mlp.experts.w2_weight_scale"):
        assert fill_values(name, 8, 64, dtype=torch.uint8).unique().tolist() == [118, 119, 120, 121]
    for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.attn.norm.weight"):
        assert (fill_values(name, 9) == 1).all()
    for name in ("model.embed_tokens.weight", "model.embedding.weight"):
        assert 0.9 < float(fill_values(name, 99, 99).float().std()) < 1.1
    assert 0.09 < float(fill_values("lm_head.weight", 99, 99).float().std()) < 0.11


ACTOR = f"""
import json, sys
from pathlib import Path
from grpo.model.architecture import Architecture
from scripts.gpu_check import actor
passed = actor.measure_lengths(0, "tiny", Architecture(**{TINY}), (64, 96))
Path(sys.argv[1]).write_text(json.dumps([passed.line, passed.numbers]))
"""


@pytest.mark.timeout(300)
def test_an_actor_is_trained_at_two_lengths(tmp_path: Path) -> None:
    """In a process of its own: its group of ranks stays."""
    program, result = tmp_path / "program.py", tmp_path / "result.json"
    program.write_text(ACTOR)
    done = forked.run([sys.executable, str(program), str(result)], 250)
    assert done.returncode == 0, done.stderr[-3000:]
    line, numbers = json.loads(result.read_text())
    assert numbers["tokens"] == [64, 96] and min(numbers["train_s"]) > 0 < min(numbers["old_s"])
    assert numbers["peak_gb"][0] < numbers["peak_gb"][1] < 1
    assert line.startswith("tiny: 64 tokens: log-probs ")


@pytest.fixture
def run_lengths(monkeypatch: pytest.MonkeyPatch):
    """Run the rung with an actor of the test: what it does at each length."""

    def run(at_length) -> Passed:
        monkeypatch.setattr(actor, "build", lambda shape, device: None)
        monkeypatch.setattr(actor, "measure_at_length", lambda engine, shape, tokens: at_length(tokens))
        return actor.measure_lengths(0, "tiny", Architecture(**TINY), (64, 128, 256))

    return run


def test_what_is_too_long_is_said_unless_nothing_fits(run_lengths) -> None:
    def make_measure(most: int):
        def measure(tokens: int) -> tuple[float, ...]:
            if tokens > most:
                raise torch.OutOfMemoryError
            return 1.0, 2.0, 3.0, 4.0

        return measure

    passed = run_lengths(make_measure(128))
    assert passed.numbers["tokens"] == [64, 128] and passed.numbers["too_long"] == 256
    assert passed.line.endswith("; 256 tokens do not fit")
    assert "too_long" not in run_lengths(make_measure(256)).numbers
    with pytest.raises(torch.OutOfMemoryError):
        run_lengths(make_measure(32))


class Actor:
    """Stands in for an engine: a call takes a second, and each token of it a half."""

    def __init__(self, described: dict | None = None, experts: int = 8, logprob: float = -1.0) -> None:
        self.described, self.experts, self.logprob, self.now = described, experts, logprob, 0.0
        self.llm = self

    async def collective_rpc(self, method: str, args: tuple = ()) -> list:
        return [{"describe": self.described, "distinct_experts": [self.experts] * 2}.get(method)]

    async def generate(self, prompt: list[int], params) -> SimpleNamespace:
        self.now = max(self.now, 1 + params.max_tokens / 2)
        at = [{7: SimpleNamespace(logprob=self.logprob)}] * params.max_tokens
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7] * params.max_tokens, logprobs=at)])


@pytest.fixture
def use_actor(monkeypatch: pytest.MonkeyPatch):
    @contextmanager
    def use(made: Actor):
        with asyncio.Runner() as loop:
            began = []

            def read_clock() -> float:
                began.append(made.now)
                made.now = 0.0
                return sum(began)

            monkeypatch.setattr(engine_speed, "time", SimpleNamespace(perf_counter=read_clock))
            yield engine_speed.Engine(made, loop, [[1, 2, 3]] * 4, engine_speed.Lengths(3, 2, 10))

    return use


def test_a_pass_takes_the_difference_of_two_calls(use_actor) -> None:
    with use_actor(Actor()) as found:
        assert found.seconds_per_pass(4) == pytest.approx(0.5)


def test_a_cache_that_would_not_hold_the_calls_is_refused(use_actor) -> None:
    with use_actor(Actor({"cache_tokens": 52})) as found:
        assert found.describe() == {"cache_tokens": 52}
    with use_actor(Actor({"cache_tokens": 51})) as found, pytest.raises(UserError, match="holds 51 tokens; the"):
        found.describe()


def test_values_that_are_not_finite_are_noticed(use_actor) -> None:
    with use_actor(Actor(logprob=float("nan"))) as found, pytest.raises(UserError, match="not finite"):
        found.generate(4, 2)


def test_weights_that_choose_the_same_experts_are_noticed(use_actor) -> None:
    shape = Architecture(**TINY | {"experts": 128, "experts_per_token": 4})  # four tokens: 15.3 if they are independent
    with use_actor(Actor(experts=8)) as found:
        assert found.distinct_experts(4, shape) == 8
    with (
        use_actor(Actor(experts=4)) as found,
        pytest.raises(UserError, match=r"choose 4\.0 of 128 .* independent ones 15"),
    ):
        found.distinct_experts(4, shape)


def test_graphs_that_fail_leave_the_eager_times(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = SimpleNamespace(
        describe=lambda: {"cache_tokens": 9, "memory_gb": 1.0},
        distinct_experts=lambda count, shape: 5.0,
        seconds_per_pass=lambda count: count / 1000,
    )

    @contextmanager
    def start_engines(folder: Path, way: str, *rest: object):
        if way == "graphs":
            raise RuntimeError("capture failed")
        yield engines

    def check(gpus: int) -> Passed:
        return engine_speed.measure_ways("gpt-oss-120b", Architecture(**TINY), "NVIDIA H100")

    monkeypatch.setattr(engine_speed, "start_engine", start_engines)
    monkeypatch.setattr(engine_speed, "write_model", lambda *_: None)
    monkeypatch.setattr(engine_speed, "check", check)
    result = rung.run_here(Rung("engine speed", "engine_speed:check", ""), 1)
    assert (result.verdict, result.line) == (rung.FAILED, "RuntimeError: capture failed")
    assert result.numbers["decode_s"] == {"eager": {"1": 0.001, "8": 0.008, "32": 0.032, "64": 0.064}}
    assert (result.numbers["model"], result.numbers["gpu"]) == ("gpt-oss-120b", "NVIDIA H100")


def make_rollouts(difference: float, adapter: float, count: int = 12) -> list:
    from grpo.metrics.scored_rollouts import Rollout

    torch.manual_seed(0)
    scored = -3 * torch.rand(count, 40)
    noise = difference * torch.randn(scored.shape)
    positions = torch.arange(40)
    return [
        Rollout(0, 0, prompt, positions, one + of, one, one + adapter * torch.randn(len(one)))
        for prompt, (one, of) in enumerate(zip(scored, noise, strict=True))
    ]


def test_engines_and_actors_are_judged() -> None:
    passed = engine.judge("2 layers", make_rollouts(0.01, 0.5))
    assert passed.line.startswith("2 layers: 0.0") and passed.numbers["difference_nat"] < 0.02
    for found, said in (
        (make_rollouts(0.2, 0.5), "mean difference"),
        (make_rollouts(0.01, 0.01), "the adapter changes nothing"),
        (make_rollouts(0.01, 0.5, 2), "2 prompts are too few to judge"),
    ):
        with pytest.raises(UserError, match=said):
            engine.judge("2 layers", found)
