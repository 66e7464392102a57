"""GPUs on which the actor's experts run without their fast kernel."""

from grpo.stack import machine
from grpo.stack.checkout import on_cpu_stack

# Where torch._grouped_mm is one kernel: Hopper, and Blackwell of data centres.
FUSED = ("9.0", "10.0")


def warnings() -> list[str]:
    """Return a line for each kind of GPU of this machine that has no fused grouped product."""
    gpus = [] if on_cpu_stack() else machine.gpus()
    kinds = sorted({(gpu.name, gpu.capability) for gpu in gpus if gpu.capability not in FUSED})
    return [
        f"WARNING: {name} (compute capability {capability}) has no fused grouped product, as {' and '.join(FUSED)} do: "
        "PyTorch multiplies the actor's experts one by one and waits for the GPU each time. Steps are slower, with the "
        "same results"
        for name, capability in kinds
    ]
