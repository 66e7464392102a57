"""Compiles the Triton kernels of a run for GPUs that are not there: `python -m scripts.gpu_check.compile`.

The launches are those of the actor and of vLLM, on tensors without data, so that Triton specializes as it does in a
run. A stub takes the place of the CUDA driver: Triton's own ptxas makes machine code, and nothing is launched. It finds
code that does not compile, tiles that do not fit, and spills, but no wrong results.
"""
