"""`vllm serve` as docs/evaluation.md has it, and the log-probs that its API returns."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import torch

from tests import forked
from tests.docs.pages import get_page
from tests.grpo.rollout import gpt_oss_tokenizer

PROGRAM = Path(__file__).with_name("vllm_on_cpu.py")
LIMIT = 300  # seconds until something has gone wrong


def read_page_commands() -> list[str]:
    """Return the page's `vllm serve` commands: with the adapter, and with the merged model."""
    blocks = get_page("docs/evaluation.md").blocks
    lines = (line for _, block in blocks for line in block.replace("\\\n", " ").splitlines())
    return [line for line in lines if line.startswith("vllm serve ")]


@contextmanager
def serve_command(command: str, paths: Mapping[str, Path], folder: Path) -> Iterator[httpx.Client]:
    """Run one of the page's commands, on one rank.

    Args:
        paths: what stands for names on the page.
        folder: for the server's socket, so with a short name.
    """
    for name, path in paths.items():
        assert name in command
        command = command.replace(name, str(path))
    gpt_oss_tokenizer.write_vocabulary(folder)  # else vLLM downloads it
    own = ["--tensor-parallel-size", "1", "--max-model-len", "400", "--enforce-eager"]
    own += ["--uds", str(folder / "socket")]
    words = [sys.executable, str(PROGRAM), *shlex.split(command)[1:], *own]
    log = folder / "log"
    with log.open("w") as output:
        server = forked.Program(words, {**os.environ, "TIKTOKEN_ENCODINGS_BASE": str(folder)}, output, output)
    try:
        transport = httpx.HTTPTransport(uds=str(folder / "socket"))
        with httpx.Client(transport=transport, base_url="http://vllm", timeout=LIMIT) as client:
            started = time.monotonic()
            while not _is_answering(client):
                assert server.poll() is None and time.monotonic() - started < LIMIT, log.read_text()[-3000:]
                time.sleep(0.1)
            yield client
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.wait(LIMIT)


def _is_answering(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False


def read_log_probs(client: httpx.Client, model: str, texts: list[list[int]]) -> torch.Tensor:
    """Of tokens 1.. of all texts, one after the other."""
    scored = []
    for text in texts:
        asked = {"model": model, "prompt": text, "max_tokens": 1, "prompt_logprobs": 0}
        reply = client.post("/v1/completions", json=asked).raise_for_status().json()
        after = reply["choices"][0]["prompt_logprobs"][1:]
        scored += [choices[str(token)]["logprob"] for choices, token in zip(after, text[1:], strict=True)]
    return torch.tensor(scored)
