"""The responses of the engines as rollouts, whose tokens are checked against the engine's account."""

import logging
import math
from typing import Any

import torch

from grpo.rollout.engine import ROUTING, SAMPLED_BY
from grpo.rollout.rows import Sample
from grpo.rollout.trajectory import check_row, missing_log_prob
from grpo.stack.upstream import Arguments, Tokenizer
from grpo.train import rewards

logger = logging.getLogger("openrlhf.grpo.rollouts")


def build_rollout(response: dict[str, Any], args: Arguments, tokenizer: Tokenizer, max_new_tokens: int) -> Sample:
    """Return the rollout of a response, with a row for each branch in ``branches``.

    The tokens are compared with the engine's account (``response["engine"]``). A branch that differs is dropped. A
    rollout that differs gets no reward and so takes no part in the update. Both count in ``info["token_mismatch"]``.

    Args:
        response: of an agent executor. Without ``engine`` it is OpenRLHF's own; then the only check is that each
            sampled token has a log-prob.
        max_new_tokens: the limit under which the response was sampled.
    """
    rollout = build_row(response, args.prompt_max_len, max_new_tokens)
    rollout.info.setdefault("token_mismatch", torch.zeros(1))  # an environment has counted those of its turns
    rollout.sampled_by = response.get(SAMPLED_BY)

    def is_sound(row: Sample, of_row: dict[str, Any]) -> bool:
        mismatch = _find_mismatch(row, of_row, args.routing_replay, tokenizer)
        if mismatch:
            logger.error("token mismatch: %s; this rollout is not trained on", mismatch)
            rollout.info["token_mismatch"] = rollout.info["token_mismatch"] + 1
        return mismatch is None

    rows = [
        (build_row({**response, **branch}, args.prompt_max_len, max_new_tokens), branch)
        for branch in response.get("branches", ())
    ]
    sound = [row for row, branch in rows if is_sound(row, branch)]
    if not is_sound(rollout, response):  # its branches may be sound, but it is rewarded and dropped as one
        rollout.rewards = torch.full((1,), math.nan)
    if "branches" not in response:  # not of an environment
        return rollout
    rollout.branches = sound
    masks = [rollout.action_mask, *(row.action_mask for row in sound)]
    rollout.info["response_length"] = torch.tensor([int(sum(mask.sum() for mask in masks))])
    if response.get("is_empty"):  # its one token is a placeholder: the rollout has no length
        rollout.info |= {name: torch.full((1,), math.nan) for name in ("response_length", "total_length")}
    return rollout


def build_row(response: dict[str, Any], prompt_max_len: int, max_new_tokens: int) -> Sample:
    """Return the row of a response: S tokens with the prompt, A = S - 1 positions that predict one.

    OpenRLHF's executor keeps ``prompt_max_len + max_new_tokens`` tokens at most; the rest is cut here.
    """
    limit = prompt_max_len + max_new_tokens
    tokens = torch.tensor(response["observation_tokens"], dtype=torch.long)  # [S], of which limit are left
    sampled = torch.zeros_like(tokens)
    for start, end in response["action_ranges"]:
        sampled[start:end] = 1
    action_mask = sampled[1:limit]  # [A]: position t predicts token t + 1, so masks and log-probs drop the first token
    log_probs = response["rollout_log_probs"]
    reward, score = rewards.scalar(response.get("reward")), rewards.scalar(response.get("scores"))
    is_cut = torch.tensor([bool(response.get("truncated")) or len(tokens) > limit])  # by the engine, or here
    info = {name: torch.tensor([rewards.scalar(value)]) for name, value in response.get("extra_logs", {}).items()}
    info |= {  # afterwards: a user's log may have one of these names
        "response_length": torch.tensor([action_mask.sum().item()]),
        "total_length": torch.tensor([float(len(tokens[:limit]))]),
        "response_clip_ratio": is_cut,  # OpenRLHF's name for the next
        "truncated": is_cut.clone(),
        "length_limit": torch.tensor([float(max_new_tokens)]),
        "reward": torch.tensor([reward]),
        "score": torch.tensor([score]),
    }
    return Sample(
        sequences=tokens[:limit].unsqueeze(0),
        attention_mask=torch.ones_like(tokens[:limit]).unsqueeze(0),
        action_mask=action_mask.unsqueeze(0),
        rollout_log_probs=None if log_probs is None else torch.tensor(log_probs[1:limit]).unsqueeze(0),
        prompts=[response["prompt"]],
        labels=[response["label"]],
        rewards=torch.tensor([reward]),
        scores=torch.tensor([score]),
        info=info,
    )


def _find_mismatch(row: Sample, response: dict[str, Any], is_replayed: bool, tokenizer: Tokenizer) -> str | None:
    """Return how a row differs from what the engine sampled; None if it does not."""
    missing = _attach_routing(row, response, is_replayed)
    if "engine" in response:
        return check_row(row, response["engine"], tokenizer.decode) or missing
    return missing_log_prob(row) or missing


def _attach_routing(row: Sample, response: dict[str, Any], is_replayed: bool) -> str | None:
    """Give a row the routing of its response; name the first token without one that a later token depends on.

    Args:
        is_replayed: whether training replays it. Otherwise only the parity gate reads it, and no token needs one.
    """
    if ROUTING not in response:
        return None
    choices = torch.tensor(response[ROUTING][: row.sequences.shape[1]])
    if not is_replayed:
        row.engine_routing = choices
        return None
    row.routing = [choices]
    # The last token predicts nothing.
    missing = (choices[:-1] == 0).flatten(1).any(dim=1).nonzero()
    if len(missing) and not response.get("is_empty"):
        return f"the engine recorded no routing for the token at position {int(missing[0])}"
    return None
