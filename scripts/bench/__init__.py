"""Benchmarks that run the stock way and ours side by side: `python -m scripts.bench NAME [--json]`.

A benchmark is a module of this package. It has a docstring (its first line is the summary), a function
`add_arguments(parser)` for its own options, and `run(options, copy) -> Result`, see `harness` and `machine`.
"""
