import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.rollout.trajectory import (
    Origin,
    Trajectory,
    is_truncated,
    response_tokens,
)
from grpo.train import rollouts

PARTS = st.lists(st.tuples(st.sampled_from(Origin), st.integers(0, 4)), max_size=12)


def grow_trajectory(parts):
    made = Trajectory()
    for number, (origin, size) in enumerate(parts):
        made.append([number] * size, origin, [-1.0] * size if origin is Origin.SAMPLED else None)
    return made


@given(PARTS)
def test_the_action_ranges_hold_the_sampled_tokens_and_no_others(parts):
    made = grow_trajectory(parts)
    sampled = [index for start, end in made.action_ranges() for index in range(start, end)]
    assert sampled == [index for index, origin in enumerate(made.origins) if origin is Origin.SAMPLED]
    ends = [end for _, end in made.action_ranges()]
    assert all(start > end for (start, _), end in zip(made.action_ranges()[1:], ends, strict=False))


@given(PARTS)
def test_every_token_has_an_origin_and_only_sampled_ones_a_log_prob(parts):
    made = grow_trajectory(parts)
    assert len(made.tokens) == len(made.origins) == len(made.log_probs)
    assert made.count(*Origin) == len(made.tokens)
    for origin, log_prob in zip(made.origins, made.log_probs, strict=True):
        assert (log_prob != 0) == (origin is Origin.SAMPLED)


PARTS_AFTER_A_PROMPT = st.lists(
    st.tuples(st.sampled_from([Origin.SAMPLED, Origin.FORCED, Origin.ENVIRONMENT, Origin.TEMPLATE]), st.integers(1, 3)),
    max_size=6,
)


def make_row(made: Trajectory, limit: int, **rest):
    response = {"prompt": "p", "label": "7", "reward": 1.0, "scores": 1.0, "extra_logs": {}} | made.as_response() | rest
    return rollouts.build_row(response, prompt_max_len=limit - 2, max_new_tokens=2)


@given(PARTS_AFTER_A_PROMPT, st.integers(3, 12))
def test_a_row_masks_and_counts_sampled_tokens_alone(parts, limit):
    made = grow_trajectory([(Origin.PROMPT, 2), *parts])
    experience = make_row(made, limit)
    kept = [origin is Origin.SAMPLED for origin in made.origins[1:limit]]
    assert experience.action_mask[0].bool().tolist() == kept
    assert experience.info["response_length"].item() == sum(kept)
    assert experience.info["total_length"].item() == min(limit, len(made.tokens))
    assert experience.info["truncated"].item() == (len(made.tokens) > limit)
    assert (experience.rollout_log_probs[0] != 0).tolist() == kept


@pytest.mark.parametrize("said", [True, False, None])
def test_response_is_truncated_if_its_executor_says_so(said):
    made = grow_trajectory([(Origin.PROMPT, 2), (Origin.SAMPLED, 3)])
    rest = {} if said is None else {"truncated": said}
    assert is_truncated(made.as_response() | rest, 5) is bool(said)
    experience = make_row(made, 5, **rest)
    assert experience.info["truncated"].item() == experience.info["response_clip_ratio"].item() == bool(said)


@given(PARTS_AFTER_A_PROMPT)
def test_a_response_is_all_that_follows_the_prompt_to_the_last_sampled_token(parts):
    made = grow_trajectory([(Origin.PROMPT, 3), *parts])
    experience = make_row(made, 100, extra_logs={"prompt_length": 3.0})
    experience.sequences = torch.cat([experience.sequences, torch.zeros(1, 2, dtype=torch.long)], dim=1)  # padding
    experience.action_mask = torch.cat([experience.action_mask, torch.zeros(1, 2, dtype=torch.long)], dim=1)
    last = max((index for index, origin in enumerate(made.origins) if origin is Origin.SAMPLED), default=2)
    assert response_tokens(experience) == made.tokens[3 : last + 1]


def test_without_a_length_of_the_prompt_a_response_begins_with_its_first_sampled_token():
    made = grow_trajectory([(Origin.PROMPT, 3), (Origin.SAMPLED, 2), (Origin.FORCED, 1), (Origin.SAMPLED, 1)])
    assert response_tokens(make_row(made, 100)) == made.tokens[3:]
