"""DeepSpeed's CPU Adam, compiled without CUDA: `python -m grpo.model.cpu_adam`.

On the GPU stack DeepSpeed 0.18.5 compiles it with CUDA's flags: nvcc must fit torch's CUDA, and the operator links
cuRAND. It uses neither. DeepSpeed's builder for machines without GPUs compiles the same sources with C++ alone.
"""

from deepspeed.ops.adam import cpu_adam
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder


def install() -> None:
    """Let every `DeepSpeedCPUAdam` of this process load this operator, on both stacks."""
    cpu_adam.CPUAdamBuilder = CPUAdamBuilder


if __name__ == "__main__":
    CPUAdamBuilder().load()
