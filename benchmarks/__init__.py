"""What checks and times this project on a machine: the checks of `python -m scripts.gpu_check`, and comparisons.

A check is a function of the number of GPUs that returns :class:`checks.Passed`, or raises `UserError` with a remedy, or
:class:`checks.Skipped`. `python -m benchmarks NAME` runs what this project replaces, called stock, beside ours.
`python -m benchmarks.compiled` compiles the kernels without a GPU.
"""
