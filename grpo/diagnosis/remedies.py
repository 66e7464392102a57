"""The likely cause of each pathology, and what to change in train_grpo.sh.

There is no KL coefficient among them: a KL to the reference is off unless asked for, and costs a pass in each step.
"""

from dataclasses import dataclass
from typing import Any

from grpo.diagnosis.finding import Action, Evidence, Finding
from grpo.diagnosis.history import History, number_of


@dataclass(frozen=True)
class Advice:
    """An action before the run's own values are known.

    Attributes:
        change: in words, for a value that is unknown or no number.
        times: the factor on the present value, None where `change` is all there is to say.
    """

    setting: str
    change: str
    why: str
    times: float | None = None


@dataclass(frozen=True)
class Remedy:
    cause: str
    advice: tuple[Advice, ...]


_RATE_DOWN = Advice("LEARNING_RATE", "to a third", "smaller updates", 1 / 3)
_RATE_UP = Advice("LEARNING_RATE", "three times as high", "the policy hardly moves", 3.0)
_CLIP_GRADIENT = Advice("MAX_GRAD_NORM", "to a third", "one bad batch moves the adapter less", 1 / 3)
_CLIP_RATIO = Advice("EPS_CLIP", "to a half", "keeps the policy nearer to the one that sampled", 0.5)
_DUAL_CLIP = Advice("--dual_clip", "3", "bounds the loss of a token with a negative advantage")
_LARGER_GROUPS = Advice("N_SAMPLES_PER_PROMPT", "twice as many", "fewer groups without spread", 2.0)
_LARGER_BATCH = Advice("TRAIN_BATCH_SIZE", "twice as large", "fewer optimizer steps a rollout, each less noisy", 2.0)
_LARGER_ROLLOUT = Advice("ROLLOUT_BATCH_SIZE", "twice as large", "less noise in a step", 2.0)
_CORRECTNESS = Advice("CORRECTNESS_WEIGHT", "0.9", "the reward follows what is checked exactly")
_QUALITY = Advice("QUALITY_WEIGHT", "0.1", "the two weights add up to 1")
_JUDGE = Advice("JUDGE_MODELS", "another model first", "a second judge, with other blind spots")
_LENGTH = Advice("GENERATE_MAX_LEN", "one and a half times as long", "responses end before they are cut", 1.5)
_ENTROPY = Advice("--entropy_loss_coef", "0.001", "pays for exploration")
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
        "the policy learns what the judge likes, not what is right",
        (_CORRECTNESS, _QUALITY, _JUDGE),
    ),
    "instability": Remedy(
        "the updates are too large: the policy leaves the region in which its samples mean something",
        (_GO_BACK, _RATE_DOWN, _CLIP_GRADIENT, _CLIP_RATIO, _LARGER_BATCH, _LARGER_ROLLOUT),
    ),
    "loss_spikes": Remedy(
        "single micro-batches with a huge ratio or advantage: samples/step_N.jsonl marks the sample (largest loss)",
        (_RATE_DOWN, _CLIP_GRADIENT, _DUAL_CLIP, _LARGER_BATCH),
    ),
    "lr_shock": Remedy(
        "the learning rate rose faster than the optimizer's state could follow",
        (_LONGER_WARM_UP, _RATE_DOWN, Advice("LR_SCHEDULER", "constant_with_warmup", "no other rise than the warm-up")),
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
    "length_collapse": Remedy(
        "short responses are rewarded as much as long ones, or the policy has left the region of its samples",
        (_RATE_DOWN, _CLIP_RATIO, _CORRECTNESS, _QUALITY, _ENTROPY),
    ),
    "entropy_collapse": Remedy(
        "the policy has settled on one way to answer and explores no more",
        (
            Advice("--eps_clip_low_high", "0.2 0.28", "lets improbable tokens become probable"),
            _ENTROPY,
            _RATE_DOWN,
            Advice("TEMPERATURE", "not below 1.0", "samples of a group have to differ"),
        ),
    ),
    "truncation": Remedy(
        "responses grow beyond the length limit, and what is cut earns nothing",
        (
            _LENGTH,
            Advice("--overlong_buffer_len", "a quarter of GENERATE_MAX_LEN", "a penalty that grows before the limit"),
        ),
    ),
    "judge_outage": Remedy(
        "every model of the judge failed: a quota, a key, a retired id, or the network",
        (
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
}


def finding(run: History, name: str, severity: str, onset: int, last: int, *evidence: Evidence) -> Finding:
    """Return a finding with its cause and its actions, in the values of this run."""
    remedy = REMEDIES[name]
    possible = [(advice, run.setting(advice.setting)) for advice in remedy.advice if not _is_so(advice, run)]
    actions = tuple(_resolved(advice, now) for advice, now in possible)
    return Finding(name, severity, int(onset), int(last), evidence, remedy.cause, actions)


def _is_so(advice: Advice, run: History) -> bool:
    """Whether the run has what is advised, or cannot have it."""
    now = run.setting(advice.setting)
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
