"""What checks and times this project on a machine: the rungs of `python -m scripts.gpu_check`, and comparisons.

A rung is a function `check(gpus, ...)` that returns :class:`ladder.Passed`, or raises `UserError` with a remedy, or
:class:`ladder.Skipped`. `python -m benchmarks NAME` runs what this project replaces, called stock, beside ours.
`python -m benchmarks.compiled` compiles the kernels without a GPU.
"""
