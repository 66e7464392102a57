"""The rungs of gpu_check about engines, on a CPU at tiny sizes: real Ray, real engines, and the actor's model."""

import json
import math
import sys
from dataclasses import replace

import psutil
import pytest

from grpo.model.architecture import Architecture
from scripts.gpu_check import engine_speed, kept, one_copy, rung, width
from scripts.gpu_check.ladder import LADDER
from scripts.gpu_check.rung import Rung

TINY = Architecture(
    layers=2, hidden=128, heads=4, key_value_heads=2, head_dim=32, experts=32, experts_per_token=2, intermediate=128,
    vocabulary=768, attention_bias=True, mxfp4=False,
)  # fmt: skip
SHORT = engine_speed.Lengths(prompt=24, short=8, long=24)


def find_rung(name: str) -> Rung:
    found = next(each for each in LADDER if each.name == name)
    assert found.find_lack(gpus=0) == "needs a GPU; PyTorch finds none", "the ladder skips it without a GPU"
    return found


@pytest.mark.timeout(900)
def test_an_engine_agrees_with_the_actor(tiny_model):
    result = rung.run_apart(find_rung("engine"), 0)
    assert result.verdict == rung.PASSED, result
    assert result.numbers["workers"] == 2
    assert result.numbers["difference_nat"] < 0.05 < result.numbers["without_adapter_nat"]


@pytest.mark.timeout(900)
def test_engine_and_actor_agree_with_replay_at_a_width_of_their_own():
    numbers = width.measure_width(0, replace(TINY, mxfp4=True), expert_rank=4).numbers
    assert numbers["difference_nat"] < 0.05 < numbers["without_adapter_nat"]
    # On a CPU both round alike; on a GPU choices differ.
    assert numbers["difference_nat"] <= numbers["without_replay_nat"] + 1e-3
    assert 0 <= numbers["choices_differing"] < 0.5


@pytest.mark.timeout(900)
def test_the_passes_of_an_engine_are_timed():
    passed = engine_speed.measure_ways("tiny", TINY, "CPU", ["eager"], (1, 4), SHORT)
    times = passed.numbers["decode_s"]["eager"]
    assert list(times) == ["1", "4"] and all(map(math.isfinite, times.values()))
    # Four tokens with two experts each.
    assert 4 < passed.numbers["distinct_experts"] <= 8
    assert passed.numbers["cache_tokens"]["eager"] > 1000 and passed.numbers["model"] == "tiny"
    assert "tiny: ms a pass at 1, 4 sequences: eager " in passed.line and "of 32 experts a layer" in passed.line


@pytest.mark.timeout(900)
def test_engine_and_actor_share_a_model():
    timed = replace(SHORT, prompt=128)
    numbers = one_copy.share_model(0, "tiny", replace(TINY, mxfp4=True), (64, 96), (1, 4), timed).numbers
    assert numbers["difference_nat"] < 0.05 < numbers["without_adapter_nat"]
    assert list(numbers["decode_s"]) == ["1", "4"] and numbers["tokens"] == [64, 96]
    assert all(map(math.isfinite, [*numbers["decode_s"].values(), *numbers["old_s"], *numbers["train_s"]]))


KILLED = """
import json, os, sys
from pathlib import Path
from grpo.launch.supervise import ray_head
from grpo.stack import rendezvous
from scripts.gpu_check import engine

scratch = Path(os.environ["TMPDIR"], "s")
scratch.mkdir()
os.environ.update(ray_head.variables() | rendezvous.variables(scratch / "rendezvous"))
import psutil, ray
from vllm import SamplingParams

with engine.start_engine(engine.tiny_model() / "bf16", scratch, 2, 0) as actor:
    ray.get(actor.generate.remote([1, 2, 3], SamplingParams(max_tokens=2)))
    of_actor = [one for one in psutil.Process().children(recursive=True) if "LLMRayActor" in " ".join(one.cmdline())]
    cores = [core.pid for one in of_actor for core in one.children(recursive=True)]
    Path(sys.argv[1]).write_text(json.dumps(cores))
    ray.kill(actor, no_restart=True)  # by SIGKILL, as Ray's memory monitor does
"""


@pytest.mark.timeout(900)
def test_the_core_of_an_engine_that_was_killed_does_not_outlive_the_rung(tiny_model, tmp_path):
    program, found = tmp_path / "program.py", tmp_path / "cores.json"
    program.write_text(KILLED)
    code = kept.run([sys.executable, str(program), str(found)], tmp_path, 600)
    assert code == 0, (tmp_path / kept.LOG).read_text()[-4000:]
    cores = json.loads(found.read_text())
    assert len(cores) >= 3, "a core and two workers"
    assert not [pid for pid in cores if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
