"""The account of a rollout's tokens: what a row masks and counts, and how it may differ from the engine's."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.rollout.trajectory import Call, Origin, Trajectory, check_row, response_tokens
from grpo.train import rollouts

PARTS = st.lists(st.tuples(st.sampled_from(Origin), st.integers(1, 3)), max_size=6)
CALLS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), min_size=1, max_size=3)


def grow_trajectory(parts):
    made = Trajectory()
    for number, (origin, size) in enumerate([(Origin.PROMPT, 3), *parts]):
        made.append([number] * size, origin, [-1.0] * size if origin is Origin.SAMPLED else None)
    return made


def make_row(made: Trajectory, limit: int, **rest):
    response = {"prompt": "p", "label": "7", "reward": 1.0, "scores": 1.0, "extra_logs": {}} | made.as_response() | rest
    return rollouts.build_row(response, prompt_max_len=limit - 2, max_new_tokens=2)


@given(PARTS, st.integers(3, 12))
def test_a_row_masks_and_counts_sampled_tokens_alone(parts, limit):
    made = grow_trajectory(parts)
    row = make_row(made, limit)
    kept = [origin is Origin.SAMPLED for origin in made.origins[1:limit]]
    assert row.action_mask[0].bool().tolist() == (row.rollout_log_probs[0] != 0).tolist() == kept
    assert row.info["response_length"].item() == sum(kept)
    assert row.info["total_length"].item() == min(limit, len(made.tokens))
    assert row.info["truncated"].item() == (len(made.tokens) > limit)
    ends = [0, *(end for _, end in made.action_ranges())]
    assert all(start > end for (start, _), end in zip(made.action_ranges()[1:], ends[1:], strict=False))


@given(PARTS)
def test_a_response_is_all_that_follows_the_prompt_to_the_last_sampled_token(parts):
    made = grow_trajectory(parts)
    row = make_row(made, 100, extra_logs={"prompt_length": 3.0})
    row.sequences = torch.cat([row.sequences, torch.zeros(1, 2, dtype=torch.long)], dim=1)  # padding
    row.action_mask = torch.cat([row.action_mask, torch.zeros(1, 2, dtype=torch.long)], dim=1)
    last = max((index for index, origin in enumerate(made.origins) if origin is Origin.SAMPLED), default=2)
    assert response_tokens(row) == made.tokens[3 : last + 1]


def test_without_a_length_of_the_prompt_a_response_begins_with_its_first_sampled_token():
    made = grow_trajectory([(Origin.SAMPLED, 2), (Origin.FORCED, 1), (Origin.SAMPLED, 1)])
    assert response_tokens(make_row(made, 100)) == made.tokens[3:]


@given(CALLS, st.sampled_from(["nothing", "token", "mask", "log-prob"]), st.randoms(use_true_random=False))
def test_any_difference_between_a_row_and_the_engines_account_is_found(calls, fault, random):
    made = Trajectory()
    made.append([1, 2], Origin.PROMPT)
    for forced, size, is_trained in calls:
        prompt = [*made.tokens, *[3] * forced]
        tokens, log_probs = [random.randint(4, 9) for _ in range(size)], [-random.random() for _ in range(size)]
        made.add(Call(prompt, list(prompt), tokens, log_probs, is_trained=is_trained))
    row, account = make_row(made, 100), made.account()
    assert check_row(row, account, str) is None
    at = random.randrange(row.action_mask.shape[1])
    if fault == "token":
        row.sequences[0, at] += 1
    elif fault == "mask":
        row.action_mask[0, at] = 1 - row.action_mask[0, at]
    elif fault == "log-prob" and row.action_mask[0, at]:
        row.rollout_log_probs[0, at] -= 1e-3
    else:
        return
    position = at if fault == "token" else at + 1
    assert f"at position {position}," in check_row(row, account, str)
