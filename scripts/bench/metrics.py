"""What the metrics of a training step cost on a trainer rank: the step without and with them.

The step is that of OpenRLHF's own classes with our patches, in one process without DeepSpeed; attention and experts
have the sizes of gpt-oss-120b, layers and experts are few. The clock runs inside the metrics, since a difference of
two steps would be noise. Not measured: the controller's part, once a step, in another process.
"""

import argparse
import tempfile
from pathlib import Path

from scripts.bench.harness import Result
from scripts.bench.machine import Copy
from scripts.bench.parts.random_model import FULL
from scripts.bench.parts.ranks import run_ranks
from scripts.bench.step import add_arguments, write_model

__all__ = ["add_arguments", "run"]

LAYERS_120B = 36


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    with tempfile.TemporaryDirectory(prefix="bench-metrics-") as scratch:
        model = write_model(options, Path(scratch))
        job = {
            "model": str(model), "package": None, "gradients": str(Path(scratch, "gradients.pt")), "lora_rank": 64,
            "vocabulary": options.vocabulary, "tokens": options.tokens, "repeat": options.repeat, "collect": True,
        }  # fmt: skip
        (found,) = run_ranks("step_worker", 1, job)
    step = found["seconds"] - found["collecting"]
    # A token's work in the layers grows with their number, that of the metrics with the rows of the vocabulary.
    share = found["collecting"] * FULL.vocabulary / options.vocabulary / (step * LAYERS_120B / options.layers)
    return Result(
        what=f"metrics of a training step on {options.tokens} tokens, {options.layers} layers of {options.experts} "
        f"experts, {options.vocabulary} rows of vocabulary, gradient checkpointing",
        unit="s",
        stock=step,
        ours=found["seconds"],
        higher_is_better=False,
        details={"collecting_seconds": found["collecting"], "share_of_the_step": found["collecting"] / step},
        extrapolation=(
            f"gpt-oss-120b: {share:.2%} of a step",
            f"assumes {LAYERS_120B} layers and {FULL.vocabulary} rows in proportion to the time measured here. A GPU's "
            "arithmetic is faster than this by more than its memory, on which the metrics depend; there offloaded "
            "layers are gathered, which takes most of a step and is left out here",
        ),
    )
