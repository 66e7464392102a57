import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A gpt-oss checkpoint with random weights in the real file format: MXFP4 experts, shards, index."""
    from transformers import GptOssForCausalLM

    from scripts.tiny_model.checkpoint import packed_tensors, write_config, write_shards
    from scripts.tiny_model.warm_start import tiny_config

    torch.manual_seed(0)
    config = tiny_config(vocab_size=97)
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    model = GptOssForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    directory = tmp_path_factory.mktemp("gpt-oss")
    write_shards(directory, packed_tensors(model), shard_bytes=300_000)
    write_config(directory, config, stop_ids=[1], pad_id=0)
    return directory


@pytest.fixture
def run_ranks(tmp_path):
    """Run a command of ranks.py in `world` processes with a gloo group, as Ray actors are in a run."""

    def run(world: int, *arguments: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, str(Path(__file__).with_name("ranks.py")), *map(str, arguments)]
        shared = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DS_ACCELERATOR": "cpu",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1",
        }
        ranks = []
        for rank in range(world):
            log = (tmp_path / f"rank{rank}.log").open("w")
            ranks.append(
                subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=log, stderr=subprocess.STDOUT)
            )
        try:
            codes = [rank.wait(timeout=400) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        logs = "\n".join((tmp_path / f"rank{rank}.log").read_text()[-3000:] for rank in range(world))
        assert codes == [0] * world, logs

    return run
