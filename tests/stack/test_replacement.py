"""An engine that is killed while it samples is replaced, and the step completes with the samples that it would have."""

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults import assert_seen, note
from tests.supervised import wait_until

from .runs import lines, processes_of, started

pytestmark = pytest.mark.timeout(1500)

STEPS, AT = 3, 2
# vLLM's process is a child of Ray's actor. Either may be killed alone.
TITLES = {"an engine": "ray::LLMRayActor", "the core of an engine": "VLLM::EngineCore"}


def phase_of(run_dir: Path) -> tuple:
    try:
        phase = json.loads((run_dir / "logs" / "phase.json").read_text())
    except FileNotFoundError:
        return ()
    return phase["phase"], phase["step"]


@pytest.fixture(scope="module", params=TITLES)
def replaced(request, tiny_model, tmp_path_factory) -> Path:
    """A run of whose engines one is killed in step 2."""
    run_dir = tmp_path_factory.mktemp("runs") / "replaced"
    with started("--run-dir", run_dir, "--steps", STEPS) as launcher:
        wait_until(lambda: phase_of(run_dir) == ("generate", AT) or launcher.poll() is not None, "no step", 800)
        time.sleep(0.3)  # the prompts are with the engines
        victim = next(pid for pid, line in processes_of(run_dir).items() if line.startswith(TITLES[request.param]))
        os.kill(victim, signal.SIGKILL)
        output, _ = launcher.communicate(timeout=800)
    assert launcher.returncode == 0, output[-5000:]
    if request.param == "an engine":
        assert_seen("an engine is killed while it samples", output)
        note("an engine is killed while it samples", lines(run_dir / "logs" / "replaced.jsonl")[0]["seconds"])
    assert re.search(rf"step {AT}: an engine died and was replaced", output) and "restart" not in output
    return run_dir


def test_the_step_completes_with_the_prompts_and_seeds_of_an_undisturbed_run(finished, replaced):
    rows = lines(replaced / "metrics.jsonl")
    assert [(row["step"], row["engines_replaced"]) for row in rows] == [(1, 0), (2, 1), (3, 0)]
    [record] = lines(replaced / "logs" / "replaced.jsonl")
    assert record["step"] == AT and record["prompts"] > 0
    for step in range(1, STEPS + 1):
        expected, actual = (lines(run / "samples" / f"step_{step}.jsonl") for run in (finished, replaced))
        assert [row["prompt"] for row in actual] == [row["prompt"] for row in expected]
        assert Counter(row["id"] for row in actual) == Counter(row["id"] for row in expected)
    # The same policy sampled them with the same seeds. A near tie may round to another token.
    expected, actual = (lines(run / "samples" / f"step_{AT}.jsonl") for run in (finished, replaced))
    same = sum(a["response"] == b["response"] for a, b in zip(actual, expected, strict=True))
    assert same >= 0.9 * len(expected)


def test_engines_and_actor_agree_after_it(replaced):
    assert {row["step"] for row in lines(replaced / "parity.jsonl")} >= {1, AT}
    assert not [problem for row in lines(replaced / "parity.jsonl") for problem in row["problems"]]


def test_nothing_is_left(replaced):
    assert processes_of(replaced) == {}
