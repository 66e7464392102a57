"""OpenRLHF's trainer: the controller, which owns the loop over steps, and the ranks of the actor."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.experience import Batch, Sample
from grpo.stack.upstream.tokenizer import Tokenizer

if TYPE_CHECKING:
    from threading import Event

    import torch
    from peft import PeftModel
    from ray import ObjectRef
    from torch.optim.lr_scheduler import LambdaLR

    from grpo.stack.upstream.engine import EngineActor

# On the controller


class PromptDataset(Protocol):
    """``PromptDataset``: for each prompt its text and its source."""

    prompts: Sequence[str]
    datasources: Sequence[str]


class PromptSampler(Protocol):
    """torch's ``RandomSampler``."""

    generator: "torch.Generator"


class PromptLoader(Protocol):
    """torch's ``DataLoader`` of prompts."""

    dataset: PromptDataset
    sampler: PromptSampler

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over an episode's prompts."""


class SamplesGenerator(Protocol):
    """Draws prompts, and has the engines answer them.

    Attributes:
        prompts_dataloader: of the training prompts.
        stage: what is being sampled, "train 7" or "eval 10". ``ppo_trainer.next_batch`` sets it.
        drawn: how often the stage has drawn each prompt. Set with ``stage``.
        greedy_sample: the number of each prompt's greedy sample, if it has one. Set with ``stage``.
        unscored: consecutive samples without a score. ``experience_maker.begin_batch`` sets it.
        groups: the groups of the step that is sampled, a :class:`grpo.batch.filtering.StepGroups`.
            ``ppo_trainer.next_batch`` sets it.
        policy: the optimizer steps of the policy that samples. ``ppo_trainer.next_batch`` sets it.
        sampled: is set while the engines sample nothing for the batch; None if nobody asks. ``ppo_trainer.next_batch``
            sets it.
        unfinished: the groups that no step has trained on yet, a :class:`grpo.batch.unfinished.Unfinished`; only with
            PARTIAL_ROLLOUTS.
        engine_calls: what the engines are asked, a :class:`grpo.rollout.replacement.EngineCalls`.
        retirement: the problems that rest, a :class:`grpo.batch.retirement.Retirement`. ``ppo_trainer.start_log`` or
            ``ppo_trainer.restore`` sets it.
    """

    args: Arguments
    tokenizer: Tokenizer
    vllm_engines: "Sequence[EngineActor]"
    prompts_dataloader: "PromptLoader"
    generate_samples: Callable[..., tuple[list[Sample], float | None, int, bool]]
    generate_eval_samples: Callable[..., list[Sample]]
    _process_response_into_experience: Callable[..., Sample]
    _dataloader_iter: Iterator[Any] | None
    stage: str
    drawn: Counter[str]
    greedy_sample: int | None
    unscored: list[Sample]
    groups: Any
    policy: int
    sampled: "Event | None"
    unfinished: Any
    engine_calls: Any
    retirement: Any


class ExperienceMaker(Protocol):
    """``RemoteExperienceMaker``: makes micro-batches with log-probs and advantages of samples.

    Attributes:
        kl_ctl: ``value`` is the current factor of the KL in the reward.
    """

    args: Arguments
    kl_ctl: Any
    actor_model_group: "ActorGroup"
    make_experience_batch: Callable[..., list[Batch]]


class ActorGroup(Protocol):
    """``RayActorGroup``: all ranks of a model. Calls return Ray's references."""

    def async_run_method(self, method_name: str, *args: Any, **kwargs: Any) -> "list[ObjectRef[Any]]":
        """Call a method of every rank."""

    def async_run_method_batch(self, method_name: str, **kwargs: Any) -> "list[ObjectRef[Any]]":
        """Call a method of every rank with its part of each list."""


class PPOTrainer(Protocol):
    """The controller. What the hooks add to it is in ``grpo.hooks.ppo_trainer.Controller``.

    Attributes:
        generate_kwargs: the arguments of ``generate_samples``.
        prompts_dataloader: of the training prompts.
        eval_dataloader: of the held-out problems; None without ``--eval_dataset``.
    """

    args: Arguments
    tokenizer: Tokenizer
    actor_model_group: "ActorGroup"
    vllm_engines: "Sequence[EngineActor]"
    samples_generator: SamplesGenerator
    experience_maker: ExperienceMaker
    generate_kwargs: dict[str, Any]
    prompts_dataloader: "PromptLoader"
    eval_dataloader: Iterable[Any] | None
    ppo_train: Callable[..., dict[str, Any]]
    broadcast_to_vllm: Callable[[], None]
    save_logs_and_checkpoints: Callable[..., None]


# On a rank of the actor


class ActorPPOTrainer(Protocol):
    """Trains on one rank. What the hooks add to it is in ``grpo.hooks.ppo_actor.RankTrainer``."""

    args: Arguments
    strategy: "Strategy"
    actor: "Actor"
    replay_buffer: "ReplayBuffer"
    vllm_engines: "Sequence[EngineActor]"


class Actor(Protocol):
    """The policy after ``DeepspeedStrategy.prepare``.

    Attributes:
        temperature: of the sampling; logits are divided by it.
        allocated: a ``grpo.model.vocabulary.Allocated``; None for all rows. The patch ``token_scores`` sets it.
    """

    model: "TrainerEngine"
    temperature: float
    allocated: Any


class Scores(Protocol):
    """Part of ``grpo.update.log_probs.TokenScores``; ``[B, S]`` each."""

    @property
    def entropy(self) -> "torch.Tensor":
        """Return the entropy at the sampling temperature, nat."""

    @property
    def unallocated(self) -> "torch.Tensor":
        """Return the probability of the rows of the vocabulary that stand for no token."""


class ModelOutput(Protocol):
    """What the model returns for a micro-batch; ``["logits"]`` are the scores of the last positions.

    Attributes:
        scores: of all positions. The patch ``token_scores`` sets it.
    """

    scores: Scores

    def __getitem__(self, name: str) -> "torch.Tensor":
        """Return one of the outputs."""


class Strategy(Protocol):
    """``DeepspeedStrategy``.

    Attributes:
        world_size: ranks of the actor.
        accumulated_gradient: micro-batches of an optimizer step on this rank.
    """

    world_size: int
    accumulated_gradient: int

    def all_reduce(self, data: "torch.Tensor", op: str = "mean") -> "torch.Tensor":
        """Return the mean, the maximum or the sum over ranks. Collective."""


class ReplayBuffer(Protocol):
    """``NaiveReplayBuffer``.

    Attributes:
        dynamic_batch: whether micro-batches differ in size; the next two are for these.
        dynamic_loss_scale: the factor of each micro-batch's loss.
        dynamic_optimizer_step: 1 for each micro-batch after which the optimizer steps.
    """

    dynamic_batch: bool
    dynamic_loss_scale: list[float]
    dynamic_optimizer_step: list[int]


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

    def gradient_accumulation_steps(self) -> int:
        """Return the micro-batches of an optimizer step."""

    def get_global_grad_norm(self) -> "float | torch.Tensor":
        """Return the L2 norm of the last optimizer step's gradient before clipping."""


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

    def get_param_id(self, param: "ZeroParameter") -> int:
        """Return the id of a parameter."""


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

    def partition(self, param_list: "Sequence[ZeroParameter]") -> None:
        """Give up the gathered values of parameters."""

    def all_gather(self, param_list: "Sequence[ZeroParameter]") -> object:
        """Gather the values of parameters on every rank."""
