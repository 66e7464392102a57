"""For each pathology: the likely cause, and what to change in train_grpo.sh, in the order to try it."""

from typing import Any

from grpo.diagnosis.advice import (
    CHECK,
    CLIP_ADVANTAGE,
    CLIP_GRADIENT,
    CLIP_RATIO,
    CORRECTNESS,
    DEADLINE,
    DUAL_CLIP,
    EAGER_ATTENTION,
    EAGER_ENGINE,
    EASIER_DATA,
    EFFORT,
    ENTROPY,
    GO_BACK,
    JUDGE,
    KL,
    LABELS,
    LARGER_BATCH,
    LARGER_GROUPS,
    LARGER_ROLLOUT,
    LENGTH,
    LONGER_WARM_UP,
    OVERLONG,
    QUALITY,
    QUOTA,
    RATE_DOWN,
    RATE_UP,
    RESTART,
    REWARD,
    SAME_PADDING,
    SAME_TEMPERATURE,
    SAME_WEIGHTS,
    THINKING,
    WARMER,
    WHOLE_GROUPS,
    Advice,
    Remedy,
)
from grpo.diagnosis.finding import Action, Evidence, Finding
from grpo.diagnosis.history import History, number_of
from grpo.diagnosis.range_remedies import RANGES

OUT_OF_RANGE = "out_of_range:"  # followed by a metric: the name of a finding about its range alone

REMEDIES = {
    "flat_learning": Remedy(
        "the updates are too small to change the policy, or most groups have no spread and teach nothing",
        (RATE_UP, LARGER_GROUPS, EASIER_DATA),
    ),
    "over_fitting": Remedy(
        "the problems of the training set are learned by heart",
        (
            Advice("TRAIN_DATA", "with more problems", "each is seen less often"),
            Advice("NUM_EPISODES", "to a half", "stop before it; the best checkpoint by exact match is kept", 0.5),
            RATE_DOWN,
            Advice("LORA_RANK", "to a half", "less room to memorise", 0.5),
        ),
    ),
    "correctness_fall": Remedy(
        "updates broke the policy, the trainer's state was damaged, or the training data became harder at that step",
        (
            GO_BACK,
            RATE_DOWN,
            LARGER_BATCH,
            CLIP_GRADIENT,
            Advice("TRAIN_DATA", "in mixed order", "no step where it gets harder"),
        ),
    ),
    "doubtful_labels": Remedy(
        "labels of the training file are wrong, the grader reads its answers differently from those of the held-out "
        "file, or its problems are far harder",
        (LABELS, REWARD, EASIER_DATA),
    ),
    "no_gradient": Remedy(
        "all samples of each group get the same reward, so that no update is made: the problems are all too hard or "
        "all too easy, no answer fits its label, or the reward is constant",
        (EASIER_DATA, LABELS, REWARD, LARGER_GROUPS, WARMER),
    ),
    "reward_hacking": Remedy(
        "the policy learns what the reward function or the judge likes, not what is right",
        (CORRECTNESS, QUALITY, JUDGE, REWARD, KL),
        cause_without_judge="the policy learns something else that the reward function pays for, not what is right",
    ),
    "instability": Remedy(
        "the updates are too large: the policy leaves the region in which its samples mean something",
        (GO_BACK, RATE_DOWN, LARGER_BATCH, KL, CLIP_RATIO, CLIP_GRADIENT, LARGER_ROLLOUT),
    ),
    "loss_spikes": Remedy(
        "single micro-batches with a huge ratio or advantage: samples/step_N.jsonl marks the sample (largest loss)",
        (CLIP_ADVANTAGE, DUAL_CLIP, CLIP_GRADIENT, RATE_DOWN, LARGER_BATCH),
    ),
    "lr_shock": Remedy(
        "the learning rate rose faster than the optimizer's state could follow",
        (RATE_DOWN, LONGER_WARM_UP, Advice("LR_SCHEDULER", "constant_with_warmup", "no other rise than the warm-up")),
    ),
    "off_policy": Remedy(
        "several optimizer steps a rollout take the policy away from the one that sampled it",
        (LARGER_BATCH, RATE_DOWN, CLIP_RATIO),
    ),
    "mismatch": Remedy(
        "trainer and engine do not compute the same policy. A difference that grows from one step on is a sync that "
        "failed; one that is there from the first step is another temperature, precision, kernel or base model",
        (EAGER_ENGINE, RESTART, SAME_TEMPERATURE, SAME_WEIGHTS, EAGER_ATTENTION),
    ),
    "passes_differ": Remedy(
        "two forward passes of the same weights differ: another attention, precision, order of experts, or dropout",
        (
            Advice("OLD_LOG_PROBS", "engine", "the ratio goes to what sampled, and one pass is saved"),
            EAGER_ATTENTION,
            SAME_PADDING,
        ),
    ),
    "length_collapse": Remedy(
        "short responses are rewarded as much as long ones, or the policy has left the region of its samples",
        (
            Advice("LOSS_AGGREGATION", "constant", "a token of a long right sample counts as much as one of a short"),
            RATE_DOWN,
            KL,
            CORRECTNESS,
            QUALITY,
        ),
    ),
    "entropy_collapse": Remedy(
        "the policy has settled on one way to answer and explores no more",
        (
            Advice("--eps_clip_low_high", "0.2 0.28", "lets improbable tokens become probable"),
            WARMER,
            RATE_DOWN,
            KL,
            ENTROPY,
        ),
    ),
    "truncation": Remedy(
        "responses do not end within the length limit: what is cut has no answer, and teaches to be short at best",
        (LENGTH, EFFORT, THINKING, OVERLONG),
    ),
    "judge_outage": Remedy(
        "every model of the judge failed: a quota, a key, a retired id, or the network",
        (CHECK, QUOTA, Advice("JUDGE_MODELS", "with one more model", "a fallback that works"), DEADLINE, WHOLE_GROUPS),
    ),
    "judge_drift": Remedy(
        "the judge has changed, not the policy: another model answers, or a model was updated",
        (
            Advice("JUDGE_MODELS", "one pinned model", "one judge from first to last step"),
            Advice("JUDGE_RPM", "to the quota", "the first model is not left for a fallback"),
            CORRECTNESS,
            QUALITY,
        ),
    ),
    "judge_dependent": Remedy(
        "the quality term decides over the reward, correctness hardly counts",
        (CORRECTNESS, QUALITY, JUDGE),
    ),
}


def finding(run: History, name: str, severity: str, onset: int, last: int, *evidence: Evidence) -> Finding:
    """Return a finding with its cause and its actions, with this run's values filled in."""
    metric = name.removeprefix(OUT_OF_RANGE)
    remedy = REMEDIES[name] if metric == name else RANGES[metric]
    cause = remedy.cause if run.has_judge else remedy.cause_without_judge or remedy.cause
    possible = [(advice, run.setting(advice.setting)) for advice in remedy.advice if not _is_so(advice, run)]
    actions = tuple(_resolved(advice, now) for advice, now in possible)
    return Finding(name, severity, int(onset), int(last), evidence, cause, actions)


def _is_so(advice: Advice, run: History) -> bool:
    """Say whether the run already follows an advice, or cannot."""
    now = run.setting(advice.setting)
    value = number_of(now)
    if advice.enough is not None and value is not None and advice.enough(value):
        return True
    if not run.has_judge and advice in (CORRECTNESS, QUALITY, JUDGE):
        return True
    return str(int(now) if isinstance(now, bool) else now) == advice.change or (
        advice is LARGER_BATCH and _is_one_batch(run)
    )


def _is_one_batch(run: History) -> bool:
    """Say whether a rollout is already one optimizer step: a larger batch would be refused."""
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
