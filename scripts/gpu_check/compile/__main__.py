"""Compile the Triton kernels of a run for GPUs that need not be there, and show what each one takes.

    python -m scripts.gpu_check.compile [--architecture NAME ...] [--experts HIDDEN,INTERMEDIATE ...] [--json]

A kernel that does not compile, or does not fit in shared memory, is found, and so is one of this project's that spills
registers. Nothing runs: results and times are not checked. It takes about a minute.

Exit code: 0 no fault; 1 a fault; 2 invalid call.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from grpo.stack import command
from grpo.stack.checkout import CHECKOUT
from scripts.gpu_check.compile.report import CARDS, Report, table

_LOG_CHARACTERS = 6000


def compile_for(architectures: Sequence[str], experts: Sequence[str] = ()) -> list[Report]:
    """Compile for each architecture in a process of its own, all at once.

    Args:
        architectures: keys of :data:`CARDS`.
        experts: hidden and intermediate size of MXFP4 experts, as "128,128", to compile these alone.

    Raises:
        RuntimeError: if a process ends without a report, with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="compile-check-") as name:
        folder = Path(name)
        environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "TRITON_INTERPRET": "0"}
        environment["VLLM_DISABLE_SHARED_EXPERTS_STREAM"] = "1"  # vLLM 0.15 makes it even for a model without such
        started = []
        for architecture in architectures:
            out = folder / f"{architecture}.json"
            # A cached kernel would not be compiled.
            own = environment | {"TRITON_CACHE_DIR": str(folder / architecture)}
            command = [sys.executable, "-m", "scripts.gpu_check.compile.worker", str(out), architecture, *experts]
            with out.with_suffix(".log").open("w") as log:
                started.append((out, subprocess.Popen(command, cwd=CHECKOUT, env=own, stdout=log, stderr=log)))
        try:
            for out, process in started:
                if process.wait():
                    raise RuntimeError(out.with_suffix(".log").read_text(errors="replace")[-_LOG_CHARACTERS:])
        finally:
            for _, process in started:
                process.kill()
                process.wait()
        return [Report.read(json.loads(out.read_text())) for out, _ in started]


def _sizes(text: str) -> str:
    if not re.fullmatch(r"\d+,\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not HIDDEN,INTERMEDIATE, such as 2880,1440")
    return text


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.gpu_check.compile", __doc__)
    parser.add_argument("--architecture", nargs="+", choices=list(CARDS), default=list(CARDS), metavar="NAME")
    parser.add_argument(
        "--experts",
        nargs="+",
        type=_sizes,
        default=[],
        metavar="HIDDEN,INTERMEDIATE",
        help="only vLLM's kernels for MXFP4 experts, of these sizes on a GPU",
    )
    parser.add_argument("--json", action="store_true", help="print each kernel, as JSON")
    options = parser.parse_args(argv)
    reports = compile_for(options.architecture, options.experts)
    faults = [fault for report in reports for fault in report.faults()]
    if options.json:
        print(json.dumps([asdict(report) for report in reports], indent=1))
    else:
        print("\n".join([*table(reports), ""]))
        print(", ".join(f"{name} {version}" for name, version in reports[0].versions.items()))
        skipped = {why: part for report in reports for part, why in report.skipped.items()}
        print("\n".join(f"skipped: {part} and others: {why}" for why, part in skipped.items()))
        print("\n".join(f"fault: {fault}" for fault in faults) or "no fault")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
