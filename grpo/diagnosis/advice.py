"""What to change in train_grpo.sh, before the values of a run are known; several remedies share most of it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """An action before the run's own values are known.

    Attributes:
        change: in words, for a value that is unknown or not a number.
        times: the factor on the present value; None if `change` says everything.
        enough: whether the present value leaves nothing to do.
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
RATE_UP = Advice("LEARNING_RATE", "three times as high", "the policy hardly moves", 3.0)
CLIP_GRADIENT = Advice("MAX_GRAD_NORM", "to a third", "one bad batch moves the adapter less", 1 / 3)
CLIP_RATIO = Advice("EPS_CLIP", "to a half", "keeps the policy nearer to the one that sampled", 0.5)
DUAL_CLIP = Advice("--dual_clip", "3", "bounds the loss of a token with a negative advantage", enough=_is_on)
CLIP_ADVANTAGE = Advice(
    "--advantage_clip", "1", "no single sample moves the policy by more", enough=lambda now: 0 < now <= 1
)
KL = Advice("KL_COEF", "0.001", "holds the policy near the model; one more forward pass a step", enough=_is_on)
OVERLONG = Advice(
    "OVERLONG_BUFFER", "a quarter of GENERATE_MAX_LEN", "a penalty that grows before the limit", enough=_is_on
)
THINKING = Advice(
    "THINKING_BUDGET", "three quarters of GENERATE_MAX_LEN", "what thinks too long still answers", enough=_is_on
)
EFFORT = Advice("REASONING_EFFORT", "low", "gpt-oss thinks for fewer tokens")
LARGER_GROUPS = Advice("N_SAMPLES_PER_PROMPT", "twice as many", "fewer groups without spread", 2.0)
LARGER_BATCH = Advice("TRAIN_BATCH_SIZE", "twice as large", "fewer optimizer steps a rollout, each less noisy", 2.0)
LARGER_ROLLOUT = Advice("ROLLOUT_BATCH_SIZE", "twice as large", "less noise in a step", 2.0)
CORRECTNESS = Advice(
    "CORRECTNESS_WEIGHT", "0.9", "the reward follows what is checked exactly", enough=lambda now: now >= 0.9
)
QUALITY = Advice("QUALITY_WEIGHT", "0.1", "the two weights add up to 1", enough=lambda now: now <= 0.1)
JUDGE = Advice("JUDGE_MODELS", "another model first", "a second judge, with other blind spots")
REWARD = Advice("REWARD", "read again", "its sign, and what it pays for: samples/ has the best paid wrong response")
LENGTH = Advice("GENERATE_MAX_LEN", "one and a half times as long", "responses end before they are cut", 1.5)
ENTROPY = Advice("--entropy_loss_coef", "0.001", "pays for exploration", enough=_is_on)
WARMER = Advice("TEMPERATURE", "1.0", "samples of a group have to differ", enough=lambda now: now >= 1)
GO_BACK = Advice("--resume", "DIR --from-step N", "continue from the last step before it, which rotation keeps")
LONGER_WARM_UP = Advice("LR_WARMUP_RATIO", "twice as long", "the learning rate comes to its peak slowly", 2.0)
EASIER_DATA = Advice("TRAIN_DATA", "problems it solves now and then", "groups with a spread")
LABELS = Advice("TRAIN_DATA", "with the right labels", "compare `label` with the answers of right samples in samples/")
SAVE_LESS = Advice("MAX_CHECKPOINTS", "1", "fewer checkpoints on that disk")
RESTART = Advice("--resume", "DIR", "a restart sends the whole adapter to the engines, in case a sync failed")
SAME_TEMPERATURE = Advice("TEMPERATURE", "1.0 in engines and trainer", "rules out that the two scale differently")
EAGER_ENGINE = Advice("ENFORCE_EAGER", "1", "a compiled engine may not apply the adapter")
SAME_WEIGHTS = Advice("ENGINE_MODEL", "the weights of MODEL", "the engines may serve another base model")
EAGER_ATTENTION = Advice("ATTN_IMPLEMENTATION", "eager", "others drop gpt-oss's attention sinks")
SAME_PADDING = Advice("MICRO_TRAIN_BATCH_SIZE", "as MICRO_ROLLOUT_BATCH_SIZE", "both passes see the same padding")
QUOTA = Advice("JUDGE_RPM", "to the quota", "asking too often is answered with 429")
DEADLINE = Advice("JUDGE_DEADLINE", "twice as long", "more time for tries", 2.0)
WHOLE_GROUPS = Advice("JUDGE_FALLBACK", "group", "all samples of a group are paid by the same measure")
CHECK = Advice("--check", "before the next start", "it asks for each model, and says what is wrong with the key")
TAIL = Advice("TOP_P", "1.0", "trainer and engine then compare whole distributions", enough=lambda now: now >= 1)
