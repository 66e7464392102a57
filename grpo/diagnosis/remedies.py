"""The likely cause of each pathology, and what to change in train_grpo.sh, in the order in which to try it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo.diagnosis.finding import Action, Evidence, Finding
from grpo.diagnosis.history import History, number_of
from grpo.metrics.metric_schema import BY_NAME

OUT_OF_RANGE = "out_of_range:"  # and a metric: the name of a finding that is about its range alone


@dataclass(frozen=True)
class Advice:
    """An action before the run's own values are known.

    Attributes:
        change: in words, for a value that is unknown or no number.
        times: the factor on the present value, None where `change` is all there is to say.
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
    cause: str
    advice: tuple[Advice, ...]


_RATE_DOWN = Advice("LEARNING_RATE", "to a third", "smaller updates", 1 / 3)
_RATE_UP = Advice("LEARNING_RATE", "three times as high", "the policy hardly moves", 3.0)
_CLIP_GRADIENT = Advice("MAX_GRAD_NORM", "to a third", "one bad batch moves the adapter less", 1 / 3)
_CLIP_RATIO = Advice("EPS_CLIP", "to a half", "keeps the policy nearer to the one that sampled", 0.5)
_DUAL_CLIP = Advice("--dual_clip", "3", "bounds the loss of a token with a negative advantage", enough=_is_on)
_CLIP_ADVANTAGE = Advice(
    "--advantage_clip", "1", "no single sample moves the policy by more", enough=lambda now: 0 < now <= 1
)
_KL = Advice("KL_COEF", "0.001", "holds the policy near the model; one more forward pass a step", enough=_is_on)
_OVERLONG = Advice(
    "OVERLONG_BUFFER", "a quarter of GENERATE_MAX_LEN", "a penalty that grows before the limit", enough=_is_on
)
_THINKING = Advice(
    "THINKING_BUDGET", "three quarters of GENERATE_MAX_LEN", "what thinks too long still answers", enough=_is_on
)
_LARGER_GROUPS = Advice("N_SAMPLES_PER_PROMPT", "twice as many", "fewer groups without spread", 2.0)
_LARGER_BATCH = Advice("TRAIN_BATCH_SIZE", "twice as large", "fewer optimizer steps a rollout, each less noisy", 2.0)
_LARGER_ROLLOUT = Advice("ROLLOUT_BATCH_SIZE", "twice as large", "less noise in a step", 2.0)
_CORRECTNESS = Advice(
    "CORRECTNESS_WEIGHT", "0.9", "the reward follows what is checked exactly", enough=lambda now: now >= 0.9
)
_QUALITY = Advice("QUALITY_WEIGHT", "0.1", "the two weights add up to 1", enough=lambda now: now <= 0.1)
_JUDGE = Advice("JUDGE_MODELS", "another model first", "a second judge, with other blind spots")
_REWARD = Advice("REWARD", "read again", "its sign, and what it pays for: samples/ has the best paid wrong response")
_LENGTH = Advice("GENERATE_MAX_LEN", "one and a half times as long", "responses end before they are cut", 1.5)
_ENTROPY = Advice("--entropy_loss_coef", "0.001", "pays for exploration", enough=_is_on)
_WARMER = Advice("TEMPERATURE", "1.0", "samples of a group have to differ", enough=lambda now: now >= 1)
_GO_BACK = Advice("--resume", "DIR --from-step N", "continue from the last step before it, which rotation keeps")
_LONGER_WARM_UP = Advice("LR_WARMUP_RATIO", "twice as long", "the learning rate comes to its peak slowly", 2.0)

REMEDIES = {
    "flat_learning": Remedy(
        "the updates are too small to change the policy, or most groups have no spread and teach nothing",
        (_RATE_UP, _LARGER_GROUPS, Advice("TRAIN_DATA", "problems it solves now and then", "groups with a spread")),
    ),
    "over_fitting": Remedy(
        "the problems of the training set are learned by heart",
        (
            Advice("TRAIN_DATA", "with more problems", "each is seen less often"),
            Advice("NUM_EPISODES", "to a half", "stop before it; the best checkpoint by exact match is kept", 0.5),
            _RATE_DOWN,
            Advice("LORA_RANK", "to a half", "less room to memorise", 0.5),
        ),
    ),
    "correctness_fall": Remedy(
        "updates broke the policy, the trainer's state was damaged, or the training data became harder at that step",
        (_GO_BACK, _RATE_DOWN, _CLIP_GRADIENT, Advice("TRAIN_DATA", "in mixed order", "no step where it gets harder")),
    ),
    "reward_hacking": Remedy(
        "the policy learns what the reward function or the judge likes, not what is right",
        (_CORRECTNESS, _QUALITY, _JUDGE, _REWARD, _KL),
    ),
    "instability": Remedy(
        "the updates are too large: the policy leaves the region in which its samples mean something",
        (_GO_BACK, _RATE_DOWN, _LARGER_BATCH, _KL, _CLIP_RATIO, _CLIP_GRADIENT, _LARGER_ROLLOUT),
    ),
    "loss_spikes": Remedy(
        "single micro-batches with a huge ratio or advantage: samples/step_N.jsonl marks the sample (largest loss)",
        (_CLIP_ADVANTAGE, _DUAL_CLIP, _CLIP_GRADIENT, _RATE_DOWN, _LARGER_BATCH),
    ),
    "lr_shock": Remedy(
        "the learning rate rose faster than the optimizer's state could follow",
        (_RATE_DOWN, _LONGER_WARM_UP, Advice("LR_SCHEDULER", "constant_with_warmup", "no other rise than the warm-up")),
    ),
    "off_policy": Remedy(
        "several optimizer steps a rollout take the policy away from the one that sampled it",
        (_LARGER_BATCH, _RATE_DOWN, _CLIP_RATIO),
    ),
    "mismatch": Remedy(
        "trainer and engine do not compute the same policy: a sync that failed, another precision, another kernel",
        (
            Advice("ENFORCE_EAGER", "1", "a compiled engine may not apply the adapter"),
            Advice("ENGINE_MODEL", "the weights of MODEL", "the engines may serve another base model"),
            Advice("ATTN_IMPLEMENTATION", "eager", "others drop gpt-oss's attention sinks"),
        ),
    ),
    "passes_differ": Remedy(
        "two forward passes of the same weights differ: another attention, precision, order of experts, or dropout",
        (
            Advice("OLD_LOG_PROBS", "engine", "the ratio goes to what sampled, and one pass is saved"),
            Advice("ATTN_IMPLEMENTATION", "eager", "the one that keeps gpt-oss's attention sinks"),
            Advice("MICRO_TRAIN_BATCH_SIZE", "as MICRO_ROLLOUT_BATCH_SIZE", "both passes see the same padding"),
        ),
    ),
    "length_collapse": Remedy(
        "short responses are rewarded as much as long ones, or the policy has left the region of its samples",
        (
            Advice("LOSS_AGGREGATION", "constant", "a token of a long right sample counts as much as one of a short"),
            _RATE_DOWN,
            _KL,
            _CORRECTNESS,
            _QUALITY,
        ),
    ),
    "entropy_collapse": Remedy(
        "the policy has settled on one way to answer and explores no more",
        (
            Advice("--eps_clip_low_high", "0.2 0.28", "lets improbable tokens become probable"),
            _WARMER,
            _RATE_DOWN,
            _KL,
            _ENTROPY,
        ),
    ),
    "truncation": Remedy(
        "responses do not end within the length limit: what is cut has no answer, and teaches to be short at best",
        (_LENGTH, _THINKING, _OVERLONG),
    ),
    "judge_outage": Remedy(
        "every model of the judge failed: a quota, a key, a retired id, or the network",
        (
            Advice("--check", "before the next start", "it asks for each model, and says what is wrong with the key"),
            Advice("JUDGE_RPM", "to the quota", "429 answers come of asking too often"),
            Advice("JUDGE_MODELS", "with one more model", "a fallback that works"),
            Advice("JUDGE_DEADLINE", "twice as long", "more time for tries", 2.0),
            Advice("JUDGE_FALLBACK", "group", "no sample of a group is paid by another measure than the rest"),
        ),
    ),
    "judge_drift": Remedy(
        "the judge has changed, not the policy: another model answers, or a model was updated",
        (
            Advice("JUDGE_MODELS", "one pinned model", "one judge from first to last step"),
            Advice("JUDGE_RPM", "to the quota", "the first model is not left for a fallback"),
            _CORRECTNESS,
            _QUALITY,
        ),
    ),
    "judge_dependent": Remedy(
        "the quality term decides over the reward, correctness hardly counts",
        (_CORRECTNESS, _QUALITY, _JUDGE),
    ),
    "out_of_range": Remedy("it depends on the metric", ()),
}

_SAVE_LESS = Advice("MAX_CHECKPOINTS", "1", "fewer checkpoints on that disk")
RANGES = {
    "answered": Remedy(
        "responses end without an answer that can be read: they are cut, or do not follow the prompt's format",
        (_LENGTH, _THINKING, Advice("TRAIN_DATA", "with the instruction to box the answer", "the grader finds it")),
    ),
    "repetition": Remedy(
        "responses go round in circles: the policy has left the model's language, or the limit invites filling",
        (_RATE_DOWN, _KL, _WARMER, _OVERLONG),
    ),
    "high_reward_wrong": Remedy(
        "wrong samples are paid like right ones: the judge is taken in, or correctness weighs too little",
        (_CORRECTNESS, _QUALITY, _JUDGE),
    ),
    "reward_correct_correlation": Remedy(
        "the reward does not go with correctness: its sign, its weights, or a judge that looks at other things",
        (_REWARD, _CORRECTNESS, _QUALITY, _JUDGE),
    ),
    "zero_spread_groups": Remedy(
        "the problems are all too hard or all too easy: groups agree, and nothing can be learned from them",
        (
            Advice("TRAIN_DATA", "problems it solves now and then", "groups with a spread"),
            _LARGER_GROUPS,
            _WARMER,
        ),
    ),
    "judge_failed": Remedy(
        "the judge fails on some samples for good: they are paid by another measure than the rest",
        (
            Advice("JUDGE_RPM", "to the quota", "429 answers come of asking too often"),
            Advice("JUDGE_DEADLINE", "twice as long", "more time for tries", 2.0),
            Advice("JUDGE_FALLBACK", "group", "no sample of a group is paid by another measure than the rest"),
        ),
    ),
    "judge_fallbacks": Remedy(
        "the first model of the judge often fails, and another one scores in its place",
        (
            Advice("JUDGE_RPM", "to the quota", "the first model is not left for a fallback"),
            Advice("JUDGE_MODELS", "one that answers first", "one judge for all samples"),
        ),
    ),
    "reward_missing": Remedy(
        "samples get no reward: the reward function or the environment fails on them, the engines' log says why",
        (Advice("REWARD", "a function that bears every response", "try it on the lines of samples/"),),
    ),
    "disk_free": Remedy(
        "the disk that checkpoints go to is filling up",
        (Advice("CKPT_DIR", "on another disk", "a full disk ends the saving"), _SAVE_LESS),
    ),
    "lost_writes": Remedy(
        "lines of metrics or samples could not be written: the disk is full, or gone",
        (Advice("METRICS_DIR", "on another disk", "what is not written is lost"), _SAVE_LESS),
    ),
}


def finding(run: History, name: str, severity: str, onset: int, last: int, *evidence: Evidence) -> Finding:
    """Return a finding with its cause and its actions, in the values of this run."""
    remedy = _remedy(name)
    possible = [(advice, run.setting(advice.setting)) for advice in remedy.advice if not _is_so(advice, run)]
    actions = tuple(_resolved(advice, now) for advice, now in possible)
    return Finding(name, severity, int(onset), int(last), evidence, remedy.cause, actions)


def _remedy(name: str) -> Remedy:
    metric = name.removeprefix(OUT_OF_RANGE)
    if metric == name:
        return REMEDIES[name]
    return RANGES.get(metric, Remedy(f"{metric}: {BY_NAME[metric].meaning}", ()))


def _is_so(advice: Advice, run: History) -> bool:
    """Whether the run has what is advised, or cannot have it."""
    now = run.setting(advice.setting)
    value = number_of(now)
    if advice.enough is not None and value is not None and advice.enough(value):
        return True
    if not run.has_judge and advice in (_CORRECTNESS, _QUALITY, _JUDGE):
        return True
    return str(int(now) if isinstance(now, bool) else now) == advice.change or (
        advice is _LARGER_BATCH and _is_one_batch(run)
    )


def _is_one_batch(run: History) -> bool:
    """Whether a rollout is one optimizer step already: a larger batch would be refused."""
    names = ("TRAIN_BATCH_SIZE", "ROLLOUT_BATCH_SIZE", "N_SAMPLES_PER_PROMPT")
    batch, prompts, samples = (run.setting_number(name) for name in names)
    return batch is not None and prompts is not None and samples is not None and batch >= prompts * samples


def _resolved(advice: Advice, now: Any) -> Action:
    if now is None or isinstance(now, list | dict) or now == "":
        return Action(advice.setting, advice.change, advice.why)
    change = advice.change
    value = number_of(now)
    if value is None:
        return Action(advice.setting, f"{change} (now {now})", advice.why)
    if advice.times is not None:
        scaled = value * advice.times
        whole = value == int(value) and scaled >= 1
        change = f"{max(1, round(scaled))}" if whole else f"{scaled:.2g}"
    return Action(advice.setting, f"{change} (now {value:g})", advice.why)
