"""What to change in train_grpo.sh, independent of a run's values. Several remedies share most of these actions."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """An action, independent of the run's own values.

    Attributes:
        change: in words, for a present value that is unknown or not a number.
        times: the factor for the present value; None if `change` says everything.
        enough: tells whether the present value needs no change.
    """

    setting: str
    change: str
    why: str
    times: float | None = None
    enough: Callable[[float], bool] | None = None


def _is_on(value: float) -> bool:
    return value > 0


@dataclass(frozen=True)
class Remedy:
    """A likely cause, and what to change, in the order to try it.

    Attributes:
        cause_without_judge: the cause in a run without a judge, if it differs.
    """

    cause: str
    advice: tuple[Advice, ...]
    cause_without_judge: str = ""


RATE_DOWN = Advice("LEARNING_RATE", "to a third", "smaller updates", 1 / 3)
RATE_UP = Advice("LEARNING_RATE", "three times as high", "the policy barely changes", 3.0)
CLIP_GRADIENT = Advice("MAX_GRAD_NORM", "to a third", "limits what one bad batch does to the adapter", 1 / 3)
CLIP_RATIO = Advice("EPS_CLIP", "to a half", "keeps the policy closer to the sampling policy", 0.5)
DUAL_CLIP = Advice("--dual_clip", "3", "bounds the loss of tokens with a negative advantage", enough=_is_on)
CLIP_ADVANTAGE = Advice(
    "--advantage_clip", "1", "limits the effect of a single rollout", enough=lambda now: 0 < now <= 1
)
KL = Advice(
    "KL_COEF", "0.001", "keeps the policy close to the base model; costs one more forward pass per step", enough=_is_on
)
OVERLONG = Advice(
    "OVERLONG_BUFFER", "a quarter of GENERATE_MAX_LEN", "a penalty that grows towards the limit", enough=_is_on
)
THINKING = Advice(
    "THINKING_BUDGET",
    "three quarters of GENERATE_MAX_LEN, and ANSWER_BUDGET to a fifth",
    "responses that think too long still get an answer",
    enough=_is_on,
)
EFFORT = Advice("REASONING_EFFORT", "low", "gpt-oss thinks for fewer tokens")
LARGER_GROUPS = Advice("N_SAMPLES_PER_PROMPT", "twice as many", "fewer groups in which all rewards are equal", 2.0)
LARGER_BATCH = Advice("TRAIN_BATCH_SIZE", "twice as large", "fewer and less noisy optimizer steps per global step", 2.0)
LARGER_ROLLOUT = Advice("ROLLOUT_BATCH_SIZE", "twice as large", "less noise in a step", 2.0)
CORRECTNESS = Advice(
    "CORRECTNESS_WEIGHT", "0.9", "the reward depends more on the exact check", enough=lambda now: now >= 0.9
)
QUALITY = Advice("QUALITY_WEIGHT", "0.1", "the two weights must add up to 1", enough=lambda now: now <= 0.1)
JUDGE = Advice("JUDGE_MODELS", "with another model first", "another judge has other blind spots")
REWARD = Advice(
    "REWARD", "review", "check its sign and what it rewards; samples/ marks the wrong response with the highest reward"
)
LENGTH = Advice("GENERATE_MAX_LEN", "one and a half times as long", "responses can end before they are cut", 1.5)
ENTROPY = Advice("--entropy_loss_coef", "0.001", "rewards exploration", enough=_is_on)
COOLER = Advice("TEMPERATURE", "1.0", "samples fewer improbable tokens", enough=lambda now: now <= 1)
NO_BONUS = Advice("--entropy_loss_coef", "0", "it rewards exploration", enough=lambda now: now <= 0)
ROUTING = Advice(
    "ROUTING_REPLAY", "1", "near a tie, the trainer then takes the engine's choice of experts", enough=_is_on
)
WARMER = Advice("TEMPERATURE", "1.0", "the rollouts of a group must differ", enough=lambda now: now >= 1)
GO_BACK = Advice("ADAPTER", "DIR/checkpoints/step_N/adapter", "a new run from before it; rotation keeps that step")
LONGER_WARM_UP = Advice("LR_WARMUP_RATIO", "twice as long", "the learning rate rises more slowly", 2.0)
FILTERING = Advice("DYNAMIC_FILTERING", "1", "draws another problem for each group without spread", enough=_is_on)
EASIER_DATA = Advice("TRAIN_DATA", "problems that the policy solves sometimes", "groups need different rewards")
LABELS = Advice("TRAIN_DATA", "with correct labels", "compare `label` with the answers in samples/")
SAVE_LESS = Advice("MAX_CHECKPOINTS", "1", "keeps fewer checkpoints on that disk")
RESTART = Advice("--resume", "DIR", "a restart sends the whole adapter to the engines again, in case a sync failed")
SAME_TEMPERATURE = Advice("TEMPERATURE", "1.0 in engines and trainer", "rules out different scaling of log-probs")
EAGER_ENGINE = Advice("ENFORCE_EAGER", "1", "a compiled engine may skip the adapter")
SAME_WEIGHTS = Advice("ENGINE_MODEL", "the same weights as MODEL", "the engines may serve another base model")
EAGER_ATTENTION = Advice("ATTN_IMPLEMENTATION", "eager", "transformers' own attention shows whether ours is the cause")
QUOTA = Advice("JUDGE_RPM", "to your quota", "the API answers 429 above it")
DEADLINE = Advice("JUDGE_DEADLINE", "twice as long", "leaves more time for tries", 2.0)
WHOLE_GROUPS = Advice("JUDGE_FALLBACK", "group", "all rollouts of a group are rewarded by the same measure")
CHECK = Advice("--check", "before the next start", "it tests the key and each model")
TAIL = Advice("TOP_P", "1.0", "engine and trainer then use the same distribution", enough=lambda now: now >= 1)

# What may bring trainer and engine to the same log-probs, in the order to try it.
SAME_POLICY = (ROUTING, EAGER_ENGINE, RESTART, SAME_TEMPERATURE, SAME_WEIGHTS, EAGER_ATTENTION)
