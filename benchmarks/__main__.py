"""Run this project's code (ours) and what it replaces (stock) side by side, and print both and the ratio.

    python -m benchmarks NAME [--json] [sizes]

Exit code: 0 measured; 1 nothing was measured, or the two do not agree; 2 invalid call.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpo.stack import command

SIZES = {  # of each benchmark: its options, with their defaults
    "dequant": {"experts": 2, "repeat": 7},
    "save": {"ranks": 2, "layers": 8, "lora_rank": 64},
    "step": {"layers": 2, "experts": 4, "intermediate": 2880, "vocabulary": 32768, "tokens": 256, "repeat": 2},
    "sync": {"engines": 2, "tensor_parallel": 2, "layers": 36, "repeat": 3},
}


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and print its result; return the exit code."""
    parser = command.parser("benchmarks", __doc__)
    of_name = parser.add_subparsers(dest="name", required=True, metavar=f"NAME ({', '.join(SIZES)})")
    for name, sizes in SIZES.items():
        one = of_name.add_parser(name, allow_abbrev=False)
        one.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        if name == "dequant":
            one.add_argument("--device", default="cpu", help="a PyTorch device, such as cuda (default: cpu)")
        for size, default in sizes.items():
            word = f"--{size.replace('_', '-')}"
            one.add_argument(word, type=_count, default=default, metavar="N", help=f"default: {default}")
    options = parser.parse_args(arguments)
    try:
        with _print_to_stderr():
            result = importlib.import_module(f"benchmarks.{options.name}").run(options)
    except (ValueError, RuntimeError, AssertionError) as error:  # the last for a device that PyTorch lacks
        print(f"benchmarks {options.name}: {error}", file=sys.stderr)
        return 1
    report = {"name": options.name, **result}
    print(json.dumps(report) if options.json else _as_text(report))
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return int(text)


@contextmanager
def _print_to_stderr() -> Iterator[None]:
    """Send what this process and those that it starts print to stderr: vLLM's would mix with the result."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _as_text(report: dict[str, Any]) -> str:
    rows = {key: f"{report[key]:.4g} {report['unit']}" for key in ("stock", "ours")}
    rows["ratio"] = f"{report['ratio']:.4g} times better"
    rows |= {key: f"{value:.4g}" for key, value in report["details"].items()}
    return "\n".join([report["what"], *(f"  {key:40}  {value}" for key, value in rows.items())])


if __name__ == "__main__":
    command.run(main, outlives=True)
