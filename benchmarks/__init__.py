"""Benchmarks that run ours and what it replaces, called stock, side by side: `python -m benchmarks NAME [--json]`.

A benchmark is a module of this package, with:
- a docstring, whose first line is the summary;
- a function `add_arguments(parser)` for its own options;
- a function `run(options, copy) -> Result`, see `harness` and `machine`.
"""
