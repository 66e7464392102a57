"""For each pathology: the likely cause, and what to change in train_grpo.sh, in the order to try it."""

from grpo.diagnosis import advice
from grpo.diagnosis.advice import Advice, Remedy
from grpo.diagnosis.finding import Action, Evidence, Finding
from grpo.diagnosis.history import RunHistory, parse_number
from grpo.diagnosis.range_remedies import RANGES
from grpo.run.saved_steps import last_before, step_name
from grpo.settings.table import CLIPPING_LOSSES

_CLIPS = ("EPS_CLIP", "--eps_clip_low_high", "--dual_clip")  # which some losses do not read
OUT_OF_RANGE = "out_of_range:"  # followed by a metric: the name of a finding about its range alone

REMEDIES = {
    "flat_learning": Remedy(
        "the updates are too small to change the policy, or most groups have equal rewards and give no gradient",
        (advice.RATE_UP, advice.LARGER_GROUPS, advice.EASIER_DATA),
    ),
    "over_fitting": Remedy(
        "the policy memorises the training problems",
        (
            Advice("TRAIN_DATA", "with more problems", "each one is seen less often"),
            Advice("NUM_EPISODES", "to a half", "stop earlier; the best checkpoint is kept", 0.5),
            advice.RATE_DOWN,
            Advice("LORA_RANK", "to a half", "less capacity to memorise; if EXPERT_RANK is set, halve it, too", 0.5),
        ),
    ),
    "correctness_fall": Remedy(
        "an update damaged the policy, the trainer's state is corrupt, or the training data became harder at that step",
        (
            advice.GO_BACK,
            advice.RATE_DOWN,
            advice.LARGER_BATCH,
            advice.CLIP_GRADIENT,
            Advice("TRAIN_DATA", "in random order", "the difficulty then does not change at one step"),
        ),
    ),
    "doubtful_labels": Remedy(
        "labels of the training file are wrong, the grader reads them differently from those of the held-out file, or "
        "the training problems are much harder",
        (advice.LABELS, advice.REWARD, advice.EASIER_DATA),
    ),
    "no_gradient": Remedy(
        "all rollouts of each group get the same reward, so there is no gradient: all problems are too hard or too "
        "easy, no answer matches its label, or the reward is constant",
        (advice.EASIER_DATA, advice.LABELS, advice.REWARD, advice.LARGER_GROUPS, advice.WARMER),
    ),
    "lost_gradient": Remedy(
        "rewards differ, and yet the gradient is exactly zero: it does not reach the adapter, the learning rate or all "
        "weights of rollouts are zero, or advantages are clipped away",
        (
            Advice("--check", "before the next start", "it reports versions that were not tested"),
            advice.EAGER_ATTENTION,
            advice.REWARD,
        ),
    ),
    "masked_gradient": Remedy(
        "MASK_TRUNCATED=1 leaves truncated rollouts out of the loss, and all rollouts of groups with differing rewards "
        "are truncated",
        (
            advice.LENGTH,
            advice.EFFORT,
            advice.THINKING,
            Advice("MASK_TRUNCATED", "0", "trains on truncated rollouts too", enough=lambda now: now <= 0),
        ),
    ),
    "reward_hacking": Remedy(
        "the policy learns to please the reward function or the judge instead of being correct",
        (advice.CORRECTNESS, advice.QUALITY, advice.JUDGE, advice.REWARD, advice.KL),
        cause_without_judge="the policy learns something other than correctness that the reward function rewards",
    ),
    "instability": Remedy(
        "the updates are too large: the policy moves too far from the one that produced the rollouts",
        (
            advice.GO_BACK,
            advice.RATE_DOWN,
            advice.LARGER_BATCH,
            advice.KL,
            advice.CLIP_RATIO,
            advice.CLIP_GRADIENT,
            advice.LARGER_ROLLOUT,
        ),
    ),
    "spikes": Remedy(
        "some micro-batches have a very large ratio or advantage, or very unlikely tokens with POLICY_LOSS=cispo; "
        "samples/step_N.jsonl marks the rollout (largest loss). Gradients that grow from step to step come before a "
        "collapse",
        (advice.CLIP_ADVANTAGE, advice.DUAL_CLIP, advice.CLIP_GRADIENT, advice.RATE_DOWN, advice.LARGER_BATCH),
    ),
    "lr_shock": Remedy(
        "the learning rate rose faster than the optimizer's state could follow",
        (
            advice.GO_BACK,
            advice.RATE_DOWN,
            advice.LONGER_WARM_UP,
            Advice("LR_SCHEDULER", "constant_with_warmup", "it rises only during the warmup"),
        ),
    ),
    "off_policy": Remedy(
        "several optimizer steps per global step move the policy away from the sampling policy",
        (advice.LARGER_BATCH, advice.RATE_DOWN, advice.CLIP_RATIO),
    ),
    "mismatch": Remedy(
        "trainer and engine do not compute the same policy. If the difference starts at some step, a sync failed. If "
        "it is there from the first step, the routing of experts, temperature, precision, kernel or base model differs",
        advice.SAME_POLICY,
    ),
    "passes_differ": Remedy(
        "two forward passes with the same weights differ: attention, precision, order of experts, or dropout",
        (
            Advice("OLD_LOG_PROBS", "engine", "compares with the engine's log-probs and saves one pass"),
            advice.EAGER_ATTENTION,
        ),
    ),
    "length_collapse": Remedy(
        "short responses are rewarded as much as long ones, or the updates have damaged the policy",
        (
            advice.GO_BACK,
            Advice("LOSS_AGGREGATION", "constant", "every token counts the same, in long and in short rollouts"),
            advice.RATE_DOWN,
            advice.KL,
            advice.CORRECTNESS,
            advice.QUALITY,
        ),
    ),
    "entropy_collapse": Remedy(
        "the policy always answers in the same way and no longer explores",
        (
            advice.GO_BACK,
            Advice("--eps_clip_low_high", "0.2 0.28", "lets improbable tokens become more probable"),
            advice.WARMER,
            advice.RATE_DOWN,
            advice.KL,
            advice.ENTROPY,
        ),
    ),
    "entropy_rise": Remedy(
        "the policy dissolves into noise: updates push down what it samples more than they push up what is right",
        (advice.GO_BACK, advice.RATE_DOWN, advice.KL, advice.CLIP_RATIO, advice.COOLER, advice.TAIL, advice.NO_BONUS),
    ),
    "truncation": Remedy(
        "responses exceed the length limit; a response that is cut has no answer",
        (advice.LENGTH, advice.EFFORT, advice.THINKING, advice.OVERLONG),
    ),
    "judge_outage": Remedy(
        "every model of the judge failed: check quota, key, model ids and network",
        (
            advice.CHECK,
            advice.QUOTA,
            Advice("JUDGE_MODELS", "with one more model", "adds a fallback"),
            advice.DEADLINE,
            advice.WHOLE_GROUPS,
        ),
    ),
    "judge_drift": Remedy(
        "the judge changed, not the policy: another model answers, or a model was updated",
        (
            Advice("JUDGE_MODELS", "one pinned model", "the same judge for all steps"),
            Advice("JUDGE_RPM", "to your quota", "the first model then answers instead of a fallback"),
            advice.CORRECTNESS,
            advice.QUALITY,
        ),
    ),
    "judge_dependent": Remedy(
        "the quality term dominates the reward, and correctness barely counts",
        (advice.CORRECTNESS, advice.QUALITY, advice.JUDGE),
    ),
}


def finding(run: RunHistory, name: str, severity: str, onset: int, last: int, *evidence: Evidence) -> Finding:
    """Return a finding with its cause and its actions, with this run's values filled in."""
    metric = name.removeprefix(OUT_OF_RANGE)
    remedy = REMEDIES[name] if metric == name else RANGES[metric]
    cause = remedy.cause if run.has_judge else remedy.cause_without_judge or remedy.cause
    possible = (_resolve(one, run, int(onset)) for one in remedy.advice if _is_possible(one, run))
    actions = tuple(action for action in possible if action)
    return Finding(name, severity, int(onset), int(last), evidence, cause, actions)


def _is_possible(chosen: Advice, run: RunHistory) -> bool:
    """Say whether a run can follow an advice, and does not already."""
    value = run.setting_number(chosen.setting)
    if value is None and run.config and chosen.setting.startswith("--"):
        value = 0.0  # a flag that was not given
    if chosen.enough is not None and value is not None and chosen.enough(value):
        return False
    if not run.has_judge and chosen in (advice.CORRECTNESS, advice.QUALITY, advice.JUDGE):
        return False
    if chosen.setting in _CLIPS and run.setting("POLICY_LOSS") not in (None, *CLIPPING_LOSSES):
        return False
    return not (chosen is advice.LARGER_BATCH and _is_one_batch(run))


def _is_one_batch(run: RunHistory) -> bool:
    """Say whether a rollout is already one optimizer step: a larger batch would be refused."""
    names = ("TRAIN_BATCH_SIZE", "ROLLOUT_BATCH_SIZE", "N_SAMPLES_PER_PROMPT")
    batch, prompts, samples = (run.setting_number(name) for name in names)
    return batch is not None and prompts is not None and samples is not None and batch >= prompts * samples


def _resolve(chosen: Advice, run: RunHistory, onset: int) -> Action | None:
    """Return an action in terms of the run's values; None if it would change nothing."""
    if chosen is advice.GO_BACK or chosen.setting == "--resume":
        return _resumption(chosen, run, onset)
    now = run.setting(chosen.setting)
    if isinstance(now, list):
        now = " ".join(map(str, now))
    if now is None or isinstance(now, dict) or now == "":
        return Action(chosen.setting, chosen.change, chosen.why)
    change, value = chosen.change, parse_number(now)
    if value is not None and chosen.times is not None:
        scaled = value * chosen.times
        whole = value == int(value) and scaled >= 1
        change = f"{max(1, round(scaled))}" if whole else f"{scaled:.2g}"
    if change == now or (value is not None and value == parse_number(change.partition(" ")[0])):
        return None
    return Action(chosen.setting, f"{change} (now {now if value is None else f'{value:g}'})", chosen.why)


def _resumption(chosen: Advice, run: RunHistory, onset: int) -> Action | None:
    """Return how to start this run again; None if no checkpoint is older than what began at `onset`."""
    if chosen is not advice.GO_BACK:
        return Action(chosen.setting, str(run.folder or chosen.change), chosen.why)
    if run.folder is None:
        return Action(chosen.setting, chosen.change, chosen.why)
    step = last_before(run.checkpoints, onset)
    return (
        None
        if step is None
        else Action(chosen.setting, f"{run.folder}/checkpoints/{step_name(step)}/adapter", chosen.why)
    )
