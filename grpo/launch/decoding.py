"""The seconds that engines sample for: a pass for each token of the longest response. Sources: docs/gpu.md.

A pass takes the longer of two: what the CPU launches, which CUDA graphs save, and what an H100 computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.model.architecture import Architecture
from grpo.model.footprint import Cache, count_expert_adapter
from grpo.model.released import RELEASED
from grpo.model.sizes import DECODED_SEQUENCES

LARGE = RELEASED["openai/gpt-oss-120b"]
# These two follow from published passes of vLLM with CUDA graphs on 8 H100s, and are within 8% of all five.
_READ = 1.67e12  # bytes per second of weights and cache, half of what the data sheet gives
_LAYER = 65e-6  # seconds of a layer's kernels, however little they read
ALL_REDUCE = 8e-6  # assumed: seconds of one between GPUs of a node; a layer has two
# Seconds of the CPU in eager mode, for a layer.
_EXPERTS = 0.51e-3  # measured without a GPU: 0.44 to 0.58 ms of Python for the routing and two products of experts
_ATTENTION = 0.25e-3  # assumed: norms, projections, and attention
_SIDE_PATH = 4 * 10e-6  # assumed: 10 us for each launch of the adapter's side path
# Operations of a layer in grpo.lora.expert_side_path, besides its products with frozen weights. vLLM's routing, whose
# place they take, still counts in _EXPERTS.
_EXPERT_STEPS = 36
_EXPERT_LAUNCHES = _EXPERT_STEPS * 10e-6  # assumed, as above
_EXPERT_KERNELS = _EXPERT_STEPS * 3e-6  # assumed: seconds of a GPU for a small kernel in a CUDA graph
_LAUNCH = 20e-6  # assumed: for an all-reduce
# Seconds between passes. With one GPU vLLM schedules the next pass during this one.
_SCHEDULING = 1.6e-3  # published: what asynchronous scheduling saves
RAY = 2e-3  # assumed: Ray carries a pass to the workers of an engine and back
_PROMPTS = 15_000  # published: prompt tokens per second of a GPU
_MEASURED_AT = 576  # tokens of a sequence in gpu_check's passes
_UNSURE = {True: (0.8, 1.2), False: (0.6, 1.3)}  # assumed: factors on a calculated time, eager and not

Factors = Mapping[bool, Sequence[tuple[int, float]]]


@dataclass(frozen=True)
class Engine:
    """An engine of some GPUs.

    Attributes:
        width: its GPUs.
        eager: whether it works without CUDA graphs.
        factors: of measured passes to calculated ones, by the number of sequences, eager and not; {} without any.
        expert_rank: of the adapters of experts; 0 if they have none.
    """

    model: Architecture
    width: int
    eager: bool
    factors: Factors
    expert_rank: int = 0

    @property
    def unsure(self) -> tuple[float, float]:
        """Return the factors by which a time may be too long or too short; assumed."""
        return (0.9, 1.2) if self.factors.get(self.eager) else _UNSURE[self.eager]

    @property
    def source(self) -> str:
        """Say where the figures are from."""
        if not self.factors.get(self.eager):
            return "calculated, see docs/gpu.md"
        more = ", with 1 GPU" if self.width > 1 else ""
        return "measured on this machine" + more + (", adapters of experts calculated" if self.expert_rank else "")

    def seconds(self, sequences: int, at_once: int, prompt: int, response: int) -> float:
        """Return the seconds for this many rollouts of this many tokens. The cache holds ``at_once`` whole ones."""
        prompts = sequences * prompt * self.model.layers / LARGE.layers / (_PROMPTS * self.width)
        running, tokens = max(1, min(at_once, DECODED_SEQUENCES)), prompt + response // 2
        whole, rest = divmod(sequences, running)
        if not whole:
            return prompts + response * self.time_pass(rest, tokens)
        late = 1.0  # share of a response that the rest still lack when the others end
        if running < DECODED_SEQUENCES:  # the cache has room for the rest while all are short
            late = min(1.0, 1 - (running / (running + rest) * (prompt + response) - prompt) / response)
        apart = self.time_pass(running, tokens) + (self.time_pass(rest, tokens) if rest else 0.0)
        last = late * apart + (1 - late) * self.time_pass(running + rest, tokens)
        return prompts + response * ((whole - 1) * self.time_pass(running, tokens) + last)

    def time_pass(self, sequences: int, tokens: int) -> float:
        """Return the seconds of a pass for this many sequences with this many tokens in the cache."""
        launches = self._launches() if self.eager else 0.0
        between = _SCHEDULING + (RAY if self.width > 1 else 0.0)
        gpu = self.time_gpu(sequences, tokens)
        calculated = max(launches, gpu) + between if self.width > 1 else max(launches + between, gpu)
        return calculated * self._factor(sequences)

    def time_gpu(self, sequences: int, tokens: int) -> float:
        """Return the seconds that the GPUs take for a pass. Few sequences choose some of the experts only."""
        model = self.model
        sizes = model.actor_bytes(model.mxfp4)
        experts = sum(size for name, size in sizes.items() if ".experts." in name)
        others = sum(sizes.values()) - experts - sizes["model.embed_tokens.weight"]
        chosen = 1 - (1 - model.experts_per_token / model.experts) ** sequences
        adapter = model.layers * count_expert_adapter(model, self.expert_rank, self.width)
        read = chosen * (experts / self.width + adapter) + others / self.width
        read += sequences * Cache(model, self.width).bytes(tokens)
        reduces = 2 * ALL_REDUCE if self.width > 1 else 0.0
        of_adapter = _EXPERT_KERNELS if self.expert_rank else 0.0
        return model.layers * (_LAYER + of_adapter + reduces) + read / _READ

    def _launches(self) -> float:
        reduces = 2 * _LAUNCH if self.width > 1 else 0.0
        of_adapter = _EXPERT_LAUNCHES if self.expert_rank else 0.0
        return self.model.layers * (_EXPERTS + _ATTENTION + _SIDE_PATH + of_adapter + reduces)

    def _factor(self, sequences: int) -> float:
        """Return the factor between those of the nearest numbers of sequences that were measured."""
        points = self.factors.get(self.eager, ())
        if not points:
            return 1.0
        below = max((point for point in points if point[0] <= sequences), default=points[0])
        above = min((point for point in points if point[0] >= sequences), default=points[-1])
        share = (sequences - below[0]) / (above[0] - below[0]) if above[0] > below[0] else 0.0
        return below[1] + share * (above[1] - below[1])


def factors(numbers: Mapping[str, Any]) -> Factors:
    """Return the factors, given the numbers of gpu_check's rung "engine speed": passes of an engine of one GPU."""
    model, found = RELEASED[f"openai/{numbers['model']}"], {}
    for eager, name in ((True, "eager"), (False, "graphs")):
        engine = Engine(model, 1, eager, {})
        passes = sorted((int(count), float(seconds)) for count, seconds in numbers["decode_s"].get(name, {}).items())
        found[eager] = [(count, seconds / engine.time_pass(count, _MEASURED_AT)) for count, seconds in passes]
    return found
