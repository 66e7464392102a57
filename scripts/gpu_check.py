"""Check what this machine's GPUs can do, one check after the other, before the first run.

    python -m scripts.gpu_check [--quick | --only CHECK ...] [--out FILE] [--seconds N]

Each check takes seconds to minutes, and ends with a verdict: passed, failed with a remedy, or skipped with the reason.
The report is one JSON file. `./train_grpo.sh --plan` uses its figures.
A machine with one GPU and PyTorch, transformers and Triton alone is checked as far as these go.

--quick runs the machine's checks, the kernels and a loop of three steps on the GPUs there are. It takes 10 minutes at
most: the sum of its checks' time limits, which are calculated, not measured. It measures nothing at full size.

SIGTERM, SIGHUP and Ctrl-C end the present check with all that it started; the report then has the checks before it.

Exit code: 0 no check failed, also without a GPU; 1 a check failed; 2 invalid call; 130 Ctrl-C, 129 SIGHUP, 143 SIGTERM.
"""

import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import machine
from benchmarks.checks import CHECKS, FAILED, PASSED, SKIPPED, Check, Result, run_all
from grpo.launch import signals
from grpo.stack import command
from grpo.stack.checkout import GPU_REPORT


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.gpu_check", __doc__)
    names = [each.name for each in CHECKS]
    parser.add_argument("--out", "--json", type=Path, metavar="FILE", help=f"the report (default: {GPU_REPORT})")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--quick", action="store_true", help="a smoke test; writes no report without --out")
    only = f"some checks; writes no report without --out ({names})"
    some.add_argument("--only", nargs="+", choices=names, metavar="CHECK", help=only)
    parser.add_argument("--seconds", type=int, metavar="N", default=3600, help="end each check after N seconds at most")
    options = parser.parse_args(argv)
    if options.seconds < 1:
        parser.error("--seconds must be at least 1")
    out = options.out or (None if options.only or options.quick else GPU_REPORT)
    if out and out.is_dir():
        parser.error(f"--out {out} is a folder; name a file")
    found = machine.look()
    print("versions ", ", ".join(f"{name} {version or 'missing'}" for name, version in found["versions"].items()))
    gpus = [f"{gpu['name']} ({gpu['memory_gb']} GB, {gpu['capability']})" for gpu in found["gpus"]]
    print("GPUs     ", ", ".join(gpus) or "none", flush=True)
    if found["fault"]:
        print("fault     PyTorch cannot be used:", found["fault"], flush=True)
    chosen = choose(options.only, options.quick)
    results = run_all([replace(each, seconds=min(each.seconds, options.seconds)) for each in chosen], found, _say, out)
    for verdict in (FAILED, SKIPPED):
        if named := [result.name for result in results if result.verdict == verdict]:
            print(f"{verdict}: {', '.join(named)}")
    passed = sum(result.verdict == PASSED for result in results)
    print(f"{passed} of {len(results)} checks passed" + (f"; report: {out}" if out else ""))
    return int(any(result.verdict == FAILED for result in results))


def choose(only: list[str] | None, quick: bool) -> list[Check]:
    """Return the checks to run, in their order, with their time limits."""
    if only:
        return [each for each in CHECKS if each.name in only]
    if quick:
        return [replace(each, seconds=each.quick) for each in CHECKS if each.quick]
    return [each for each in CHECKS if not each.on_request]


def _say(result: Result) -> None:
    print(f"{result.verdict:<8}  {result.name:<30} {result.seconds:6.1f} s  {result.line}", flush=True)
    if result.remedy:
        print(f"          -> {result.remedy}", flush=True)


if __name__ == "__main__":
    signals.raise_them()
    try:
        command.run(main, outlives=True)
    except signals.Signalled as end:
        print(f"{end.name}: the check and all that it started have been ended", file=sys.stderr)
        sys.exit(end.code)
