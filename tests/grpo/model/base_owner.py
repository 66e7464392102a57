"""Owns a base, as the worker of an engine on a CPU does, until it is killed: base_owner.py MODEL DESCRIPTION."""

import json
import os
import signal
import sys
from pathlib import Path

from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

from grpo.model import base_on_cpu


def main(model: str, out: Path) -> None:
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        init_distributed_environment(1, 0, f"file://{out}.meet", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    description = base_on_cpu.describe(model)
    aside = out.with_suffix(".aside")
    aside.write_text(json.dumps(description))
    aside.rename(out)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)
