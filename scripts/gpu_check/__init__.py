"""What a machine with GPUs must be able to do before a run, in rungs: `python -m scripts.gpu_check`.

A rung is a function `check(gpus, ...)` of a module of this package. It returns :class:`rung.Passed`, raises `UserError`
with a remedy, or raises :class:`rung.Skipped`. Any other exception is a failure, too. Each rung runs in a process of
its own, so none takes the others down. Packages beyond PyTorch, transformers, Triton and psutil are imported inside of
rungs.
"""
