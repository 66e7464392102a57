"""Benchmarks that run ours and what it replaces, called stock, side by side: `python -m benchmarks NAME [--json]`.

A benchmark is a module of this package, with:
- a docstring, whose first line is the summary;
- `SIZES`, the defaults of its options, by their names in `harness.SIZES`;
- a function `run(options, copy) -> Result`, see `harness` and `machine`.
"""
