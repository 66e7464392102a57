"""A CPU worker of vLLM that names its device, as Ray's executor wants it to."""

import torch
from vllm.v1.worker.cpu_worker import CPUWorker


class Worker(CPUWorker):
    """The platform sets it in place of vLLM's own."""

    def init_device(self) -> None:
        super().init_device()
        self.device = torch.device("cpu")
