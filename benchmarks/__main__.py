"""`python -m benchmarks NAME [--json]`: see the package."""

import argparse
import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import benchmarks
from benchmarks.harness import Result, add_sizes
from benchmarks.machine import Copy, facts
from grpo.stack import command
from grpo.stack.problem import UserError

HELPERS = {"__main__", "harness", "machine"}


def names() -> list[str]:
    """Return the benchmarks: every module of the package except helpers."""
    modules = pkgutil.iter_modules(benchmarks.__path__)
    return sorted({module.name for module in modules if not module.ispkg} - HELPERS)


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and print its result. Returns 2 for wrong arguments, 1 for an invalid result."""
    options, benchmark = _parse(sys.argv[1:] if arguments is None else arguments)
    copy = Copy(options.copy_megabytes, torch.device(options.device))
    copy.measure()
    try:
        with print_to_stderr():
            result = benchmark.run(options, copy)
        report = as_json(options.name, result, facts(copy))
    except ValueError as error:
        print(f"bench {options.name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    print(json.dumps(report) if options.json else as_text(report))
    return 0


@contextmanager
def print_to_stderr() -> Iterator[None]:
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


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, Any]:
    # Parse the name first: the options depend on it, and no other benchmark needs to be imported.
    first = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m benchmarks",
        description="Runs ours and what it replaces, called stock, side by side.",
        add_help=False,
    )
    first.add_argument("name", choices=names(), metavar=f"NAME ({', '.join(names())})")
    if not arguments or arguments[0] in ("-h", "--help"):
        first.print_help()
        first.exit(0 if arguments else 2)
    name = first.parse_args(arguments[:1]).name
    benchmark = importlib.import_module(f"benchmarks.{name}")
    parser = command.parser(f"benchmarks {name}", benchmark.__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    if hasattr(benchmark, "ON_ANY_DEVICE"):
        parser.add_argument("--device", help="a PyTorch device, such as cuda (default: cpu)")
    add_sizes(parser, {"copy_megabytes": 256} | benchmark.SIZES)
    options = parser.parse_args(arguments[1:], argparse.Namespace(name=name, device="cpu"))
    try:
        torch.empty(1, device=options.device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device {options.device} cannot be used here: {str(error).splitlines()[0]}")
    return options, benchmark


def as_json(name: str, result: Result, machine: dict[str, Any]) -> dict[str, Any]:
    """Return the object that `--json` prints. Raises ValueError if stock or ours is not a positive number."""
    return {
        "name": name,
        "what": result.what,
        "unit": result.unit,
        "higher_is_better": result.higher_is_better,
        "stock": result.stock,
        "ours": result.ours,
        "ratio": result.ratio,
        "details": dict(result.details),
        "extrapolation": list(result.extrapolation),
        "machine": machine,
    }


def as_text(report: dict[str, Any]) -> str:
    """Return the same as a table."""
    rows = [(key, f"{report[key]:.4g} {report['unit']}") for key in ("stock", "ours")]
    rows.append(("ratio", f"{report['ratio']:.4g} times better" if report["ratio"] >= 1 else f"{report['ratio']:.4g}"))
    for group in ("details", "machine"):
        rows += [
            (key, f"{value:.4g}" if isinstance(value, float) else str(value)) for key, value in report[group].items()
        ]
    width = max(len(key) for key, _ in rows)
    lines = [report["what"], *(f"  {key:{width}}  {value}" for key, value in rows), *report["extrapolation"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
