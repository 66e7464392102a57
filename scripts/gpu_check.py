"""Check what this machine's GPUs can do, rung by rung, before the first run.

    python -m scripts.gpu_check [--out FILE] [--seconds N] [--only RUNG ...]

Each rung takes seconds to minutes, and ends with a verdict: passed, failed with a remedy, or skipped with the reason.
The report is one JSON file. `./train_grpo.sh --plan` uses its figures.
A machine with one GPU and PyTorch, transformers and Triton alone is checked as far as these go.

SIGTERM, SIGHUP and Ctrl-C end the present rung with all that it started; the report then has the rungs before it.

Exit code: 0 no rung failed, also without a GPU; 1 a rung failed; 2 invalid call; 130 Ctrl-C, 129 SIGHUP, 143 SIGTERM.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, rung
from benchmarks.ladder import LADDER, climb
from benchmarks.rung import Result
from grpo.launch import signals
from grpo.stack import command
from grpo.stack.checkout import GPU_REPORT


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.gpu_check", __doc__)
    names = [each.name for each in LADDER]
    parser.add_argument("--out", "--json", type=Path, metavar="FILE", help=f"the report (default: {GPU_REPORT})")
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="RUNG", help=f"some rungs; writes no report without --out ({names})"
    )
    parser.add_argument("--seconds", type=int, metavar="N", help="end each rung after N seconds, if not before")
    options = parser.parse_args(argv)
    if options.seconds is not None and options.seconds < 1:
        parser.error("--seconds must be at least 1")
    out = options.out or (None if options.only else GPU_REPORT)
    if out and out.is_dir():
        parser.error(f"--out {out} is a folder; name a file")
    chosen = [each for each in LADDER if not options.only or each.name in options.only]
    if options.seconds:
        chosen = [replace(each, seconds=min(each.seconds, options.seconds)) for each in chosen]
    found = machine.look()
    print("\n".join(_describe(found)), flush=True)
    results = climb(chosen, found, _say, out)
    of_verdict = {verdict: [r.name for r in results if r.verdict == verdict] for verdict in (rung.FAILED, rung.SKIPPED)}
    for verdict, named in of_verdict.items():
        print(f"{verdict}: {', '.join(named)}\n" if named else "", end="")
    passed = len(results) - sum(map(len, of_verdict.values()))
    print(f"{passed} of {len(results)} rungs passed" + (f"; report: {out}" if out else ""))
    return int(bool(of_verdict[rung.FAILED]))


def _describe(found: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version or 'missing'}" for name, version in found["versions"].items())
    gpus = [f"{gpu['name']} ({gpu['memory_gb']} GB, {gpu['capability']})" for gpu in found["gpus"]]
    lines = [f"versions  {versions}", f"GPUs      {', '.join(gpus) or 'none'}"]
    return lines + ([f"fault     PyTorch cannot be used: {found['fault']}"] if found["fault"] else [])


def _say(result: Result) -> None:
    print(f"{result.verdict:<8}  {result.name:<30} {result.seconds:6.1f} s  {result.line}", flush=True)
    if result.remedy:
        print(f"          -> {result.remedy}", flush=True)


if __name__ == "__main__":
    signals.raise_them()
    try:
        sys.exit(main())
    except signals.Signalled as end:
        print(f"{end.name}: the rung and all that it started have been ended", file=sys.stderr)
        sys.exit(end.code)
