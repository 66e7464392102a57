"""DeepSpeed's CPU Adam, compiled without CUDA: `python -m grpo.model.cpu_adam`.

On the GPU stack DeepSpeed 0.18.5 compiles it with CUDA's flags: nvcc must fit torch's CUDA, and the operator links
cuRAND. It uses neither. DeepSpeed's builder for machines without GPUs compiles the same sources with C++ alone.
"""

import torch
from deepspeed.ops.adam import cpu_adam
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder


def install() -> None:
    """Let every `DeepSpeedCPUAdam` of this process load this operator, on both stacks."""
    cpu_adam.CPUAdamBuilder = CPUAdamBuilder


def catch_up(adam: torch.optim.Optimizer, steps: int, parameters: int) -> None:
    """Let a new ``DeepSpeedCPUAdam`` step on as one that has made `steps` steps; does nothing to another optimizer.

    The operator keeps float32 powers of the betas outside Adam's state, and multiplies them at each step. A new one
    computes them anew, which rounds otherwise: the bias corrections of a resumed run would differ in their last bits.
    Steps on an element of their own bring the powers to where `steps` steps leave them.

    Args:
        parameters: on how many tensors each step works. Each of them moves the powers.
    """
    if not isinstance(adam, cpu_adam.DeepSpeedCPUAdam):
        return
    group, zeros = adam.param_groups[0], [torch.zeros(1) for _ in range(4)]
    for step in range(1, steps + 1):
        for _ in range(parameters):
            settings = (*group["betas"], group["eps"], group["weight_decay"], group["bias_correction"])
            adam.ds_opt_adam.adam_update(adam.opt_id, step, group["lr"], *settings, *zeros)


if __name__ == "__main__":
    CPUAdamBuilder().load()
