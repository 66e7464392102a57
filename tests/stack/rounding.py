"""How far two passes in bf16 may be apart: simulated in float32, since no two implementations round alike."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import torch
from peft import PeftModel
from transformers import AutoTokenizer
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssPreTrainedModel, GptOssRotaryEmbedding

from grpo.model import loading, vocabulary

Found = TypeVar("Found")
PASSES = 32
MARGIN = 2
BATCH_TOKENS = 2000


@dataclass
class Rounding:
    """How far forward passes in bf16 are from float32, and from each other.

    Attributes:
        error: of one pass at each position, the root mean square over many passes.
        often: of the worst pair of passes, the share of positions at which they differ by more than four errors.
    """

    error: torch.Tensor
    often: float

    @classmethod
    def simulate(cls, model, texts: list[list[int]]) -> "Rounding":
        """What :func:`simulate` finds for all positions of these texts."""

        def compute() -> torch.Tensor:
            return torch.cat(compute_log_probs(model, texts))

        return cls.measure(compute(), simulate(model, compute))

    @classmethod
    def measure(cls, exact: torch.Tensor, passes: list[torch.Tensor]) -> "Rounding":
        """What a pass in float32 and simulated ones say of the same positions."""
        error = (torch.stack(passes) - exact).square().mean(0).sqrt().clamp(min=1e-6)
        return cls(error, often=max(compute_share_beyond(a - b, error) for a, b in combinations(passes, 2)))

    def covers(self, trainer: torch.Tensor, engine: torch.Tensor) -> bool:
        """Whether two log-probs differ by more than four errors at no more positions than two passes in bf16 do.

        Times MARGIN: the simulated passes round where modules end, kernels round inside them as well. How large the
        largest difference is says nothing: a router takes another expert in one pass of hundreds at some positions, by
        whole nats, and none of these passes may have done so.
        """
        often = compute_share_beyond(trainer - engine, self.error)
        print(f"of {len(trainer)} positions {often:.2%} are apart; of the worst pair of bf16 passes: {self.often:.2%}")
        return often <= MARGIN * self.often


def compute_share_beyond(differences: torch.Tensor, error: torch.Tensor) -> float:
    return (differences.abs() > 4 * error).double().mean().item()


def load_reference_model(folder: Path, adapter: Path | None = None) -> torch.nn.Module:
    """Load a checkpoint in float32 with transformers, and an adapter with PEFT; `kept` are the rows of tokens."""
    model = loading.load_gpt_oss(folder, packed=False)  # PEFT adds to unpacked experts
    for layer in model.model.layers:
        layer.mlp.experts.is_transposed = True  # to PEFT, as transformers 5 says it
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    loading.restore_rope(model.eval().float())
    model.kept = vocabulary.find_allocated(AutoTokenizer.from_pretrained(folder))
    return model


def simulate(model, compute: Callable[[], Found]) -> list[Found]:
    """What `compute` finds with a float32 model in each of PASSES passes that round to bf16.

    Each pass rounds the output of every module, after moving it at random by up to half a unit in the last place: so
    each rounds elsewhere, as two implementations do, and near a tie its router takes another expert.
    """
    torch.manual_seed(0)
    hooks = [module.register_forward_hook(round_output) for module in model.modules() if is_computing(module)]
    try:
        with one_thread():
            return [compute() for _ in range(PASSES)]
    finally:
        for hook in hooks:
            hook.remove()


def bound_differences(passes: list[torch.Tensor]) -> torch.Tensor:
    """How far two implementations may be apart at each place: MARGIN times the worst pair of passes."""
    stacked = torch.stack(passes)
    return MARGIN * (stacked.amax(0) - stacked.amin(0))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: many small products stall at thread barriers where other work has the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def is_computing(module: torch.nn.Module) -> bool:
    """Whether a pass in bf16 rounds the output of this module: a layer or one of its parts."""
    frames = (GptOssPreTrainedModel, GptOssRotaryEmbedding)
    is_part = isinstance(module, torch.nn.Linear | torch.nn.Embedding) or type(module).__name__.startswith("GptOss")
    return is_part and not isinstance(module, frames)


def round_output(module, inputs, output):
    if isinstance(output, tuple):
        return tuple(round_output(module, inputs, part) for part in output)
    if not isinstance(output, torch.Tensor) or output.dtype != torch.float32:
        return output
    return (output * (1 + (torch.rand_like(output) - 0.5) * 2**-7)).bfloat16().float()


def compute_log_probs(model, texts: list[list[int]], temperature: float = 1.0) -> list[torch.Tensor]:
    """Of tokens 1.. of each text, `[len(text) - 1]`."""
    all_values = compute_distributions(model, [text[:-1] for text in texts], temperature)
    return [pick_log_probs(text, values) for text, values in zip(texts, all_values, strict=True)]


def pick_log_probs(text: list[int], after: torch.Tensor) -> torch.Tensor:
    """Of tokens 1.. of a text, `[len(text) - 1]`, by the log-probs after each token."""
    return after[: len(text) - 1].gather(-1, torch.tensor(text[1:])[:, None])[:, 0]


def compute_distributions(model, texts: list[list[int]], temperature: float = 1.0) -> list[torch.Tensor]:
    """Log-probs after each token, `[len(text), V]`, among the rows of the vocabulary that stand for tokens."""
    by_index = {}
    for indices in make_batches([len(text) for text in texts]):
        longest = max(len(texts[index]) for index in indices)
        # Tokens after a text change nothing in it.
        tokens = torch.tensor([texts[index] + [0] * (longest - len(texts[index])) for index in indices])
        with torch.no_grad():
            logits = vocabulary.mask_(model(tokens).logits.float(), model.kept)
        for index, values in zip(indices, (logits / temperature).log_softmax(-1), strict=True):
            by_index[index] = values[: len(texts[index])]
    return [by_index[index] for index in range(len(texts))]


def make_batches(lengths: list[int]) -> Iterator[list[int]]:
    """Which texts are computed together: of like lengths, since one by one they take three times as long."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    yield batch
