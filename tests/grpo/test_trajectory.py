import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.trajectory import Origin, Trajectory

PARTS = st.lists(st.tuples(st.sampled_from(Origin), st.integers(0, 4)), max_size=12)


def grown(parts):
    made = Trajectory()
    for number, (origin, size) in enumerate(parts):
        made.append([number] * size, origin, [-1.0] * size if origin is Origin.SAMPLED else None)
    return made


@given(PARTS)
def test_the_action_ranges_hold_the_sampled_tokens_and_no_others(parts):
    made = grown(parts)
    places = [place for start, end in made.action_ranges() for place in range(start, end)]
    assert places == [place for place, origin in enumerate(made.origins) if origin is Origin.SAMPLED]
    ends = [end for _, end in made.action_ranges()]
    assert all(start > end for (start, _), end in zip(made.action_ranges()[1:], ends, strict=False))


@given(PARTS)
def test_every_token_has_an_origin_and_only_sampled_ones_a_log_prob(parts):
    made = grown(parts)
    assert len(made.tokens) == len(made.origins) == len(made.log_probs)
    assert made.count(*Origin) == len(made.tokens)
    for origin, log_prob in zip(made.origins, made.log_probs, strict=True):
        assert (log_prob != 0) == (origin is Origin.SAMPLED)


def test_sampled_tokens_need_log_probs_and_others_have_none():
    with pytest.raises(ValueError, match="without log-probs"):
        Trajectory().append([1], Origin.SAMPLED)
    with pytest.raises(ValueError, match="with log-probs"):
        Trajectory().append([1], Origin.FORCED, [-0.1])
    with pytest.raises(ValueError, match="2 tokens with 1"):
        Trajectory().append([1, 2], Origin.SAMPLED, [-0.1])
