"""What the controller and the ranks of the actor get from OpenRLHF and DeepSpeed."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from ray import ObjectRef
    from torch.optim.lr_scheduler import LambdaLR
    from torch.utils.data import RandomSampler

# On the controller


class PromptDataset(Protocol):
    """``PromptDataset``: for each prompt its text and its source."""

    prompts: Sequence[str]
    datasources: Sequence[str]

    def __len__(self) -> int: ...


class PromptLoader(Protocol):
    """The ``StatefulDataLoader`` of an episode's prompts."""

    dataset: PromptDataset
    sampler: "RandomSampler"

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class ActorGroup(Protocol):
    """``RayActorGroup``: all ranks of a model. Calls return Ray's references."""

    def async_run_method(self, method_name: str, *args: Any, **kwargs: Any) -> "list[ObjectRef[Any]]": ...
    def async_run_method_batch(self, method_name: str, **kwargs: Any) -> "list[ObjectRef[Any]]": ...


# On a rank of the actor


class Actor(Protocol):
    """The policy after ``DeepspeedStrategy.prepare``.

    Attributes:
        temperature: of the sampling; logits are divided by it.
        allocated: a ``grpo.model.vocabulary.Allocated``; None for all rows. The patch ``metrics_actor`` adds it.
    """

    model: "TrainerEngine"
    temperature: float
    allocated: Any


class ModelOutput(Protocol):
    """What the model returns for a micro-batch; ``["logits"]`` are the scores of the last positions.

    Attributes:
        scores: a ``grpo.train.log_probs.TokenScores`` of all positions. The patch ``metrics_actor`` sets it.
    """

    scores: Any

    def __getitem__(self, name: str) -> "torch.Tensor": ...


class TrainerEngine(Protocol):
    """DeepSpeed's ``DeepSpeedEngine`` with ZeRO-3.

    Attributes:
        optimizer: DeepSpeed's ``DeepSpeedZeroOptimizer_Stage3``.
        global_steps: optimizer steps; ``micro_steps`` counts micro-batches.
    """

    module: "PeftModel"
    optimizer: "ZeroOptimizer"
    lr_scheduler: "LambdaLR"
    global_steps: int
    global_samples: int
    skipped_steps: int
    micro_steps: int

    def gradient_accumulation_steps(self) -> int: ...
    def get_global_grad_norm(self) -> "float | torch.Tensor": ...


class ZeroOptimizer(Protocol):
    """``DeepSpeedZeroOptimizer_Stage3``: this rank's ranges of the trained parameters.

    Attributes:
        optimizer: the Adam that steps on the ranges.
        param_groups: Adam's.
        fp32_partitioned_groups_flat: the fp32 master weights of each group, ``[elements]``.
        grad_position: group, offset and size of each parameter's range, by the id of the parameter.
        persistent_parameters: parameters that every rank keeps whole.
    """

    optimizer: "torch.optim.Optimizer"
    param_groups: list[dict[str, Any]]
    fp32_partitioned_groups_flat: "list[torch.Tensor]"
    grad_position: dict[int, list[int]]
    persistent_parameters: "list[ZeroParameter]"

    def get_param_id(self, param: "ZeroParameter") -> int: ...


class ZeroParameter(Protocol):
    """An ``nn.Parameter`` that ZeRO-3 has partitioned.

    Attributes:
        ds_tensor: this rank's range, ``[elements]``, padded to the same size on every rank. It has attributes of its
            own: ``ds_numel`` (its size with padding), ``status``, ``final_location``.
        ds_shape, ds_numel: of the whole parameter.
        ds_numel_aligned: elements of the whole parameter with padding.
        ds_persist: whether every rank keeps it whole.
    """

    ds_tensor: Any
    ds_shape: "torch.Size"
    ds_numel: int
    ds_numel_aligned: int
    ds_persist: bool

    def partition(self, param_list: "Sequence[ZeroParameter]") -> None: ...
    def all_gather(self, param_list: "Sequence[ZeroParameter]") -> object: ...
