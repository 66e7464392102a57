"""Compiles everything for one architecture; the stub stays in this process.

python -m scripts.gpu_check.compile.worker OUT ARCHITECTURE [HIDDEN,INTERMEDIATE ...]
"""

import copy
import functools
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path

from scripts.gpu_check.compile import driver
from scripts.gpu_check.compile.report import ACTOR, CARDS, ENGINE, SHARING, Kernel, Report
from scripts.gpu_check.rung import Skipped

_NAMED = ("torch", "triton", "vllm")
WORKERS = (1, 2)  # GPUs of an engine
Part = tuple[str, str, Callable[[], None]]  # owner, name, and what launches its kernels


def parts(experts: Sequence[str], can_share: bool) -> Iterator[Part]:
    """Yield what a run launches; or, if shapes of MXFP4 experts are given, these alone.

    Args:
        can_share: whether ACTOR_SHARD=engine works on the card.
    """
    from transformers import GptOssConfig

    from grpo.model.released import RELEASED
    from scripts.gpu_check.compile import actor, engine
    from scripts.tiny_model.warm_start import tiny_config

    models = {name.rpartition("/")[2]: GptOssConfig(**shape.config()) for name, shape in RELEASED.items()}
    models["tiny"] = tiny_config(512)
    for sizes in experts:
        config = copy.copy(models["tiny"])
        config.hidden_size, config.intermediate_size = map(int, sizes.split(","))
        yield ENGINE, f"MXFP4 experts of {sizes}", functools.partial(engine.experts, config, 1)
    if experts:
        return
    for name, config in models.items():
        yield ACTOR, f"attention of {name}", functools.partial(actor.attention, config)
        yield ACTOR, f"MXFP4 experts of {name}", functools.partial(actor.experts, config)
    for name, config in models.items():
        for workers in WORKERS:
            of = f"{name}, TP={workers}"
            yield ENGINE, f"attention of {of}", functools.partial(engine.attention, config, workers)
            yield ENGINE, f"MXFP4 experts of {of}", functools.partial(engine.experts, config, workers)
    for name, config in models.items() if can_share else ():  # last, since they change the layout
        yield SHARING, f"MXFP4 experts of {name}", functools.partial(engine.shared_experts, config)


def describe_error(error: Exception) -> str:
    """Return an error in a line: for a failed assertion, the assertion."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error).strip() or f"{last.line} ({Path(last.filename).name}:{last.lineno})"
    # Triton quotes the kernel, and marks the line with a caret under it.
    marked = re.findall(r"^(.*)\n *\^ *$", text, re.MULTILINE)
    return f"{type(error).__name__}: {(marked or text.splitlines())[-1].strip()}"


def main() -> None:
    out, architecture, *experts = sys.argv[1:]
    card = CARDS[architecture]
    installed = {one.name: one.version for one in distributions()}
    report = Report(architecture, {name: installed[name] for name in _NAMED if name in installed})
    owner = part = ""

    def add(name: str, registers: int, spilled: int, shared: int) -> None:
        report.kernels.append(Kernel(owner, part, name, registers, spilled, shared))

    driver.install(card, add)
    from scripts.gpu_check.compile import engine

    engine.simulate_card(card)
    for owner, name, launch in parts(experts, can_share=card.capability == (9, 0)):
        part = f"{owner}: {name}"
        try:
            launch()
        except Skipped as reason:
            report.skipped[part] = str(reason)
        except Exception as error:  # each part is its own verdict
            traceback.print_exc()
            report.failed[part] = describe_error(error)
    Path(out).write_text(json.dumps(asdict(report)))


if __name__ == "__main__":
    main()
