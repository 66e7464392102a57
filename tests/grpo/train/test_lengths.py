import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.stack.problem import UserError
from grpo.train.lengths import WINDOW, Schedule, Stage, parse


def make_schedule(text: str | None, state=None) -> Schedule:
    return Schedule(SimpleNamespace(length_schedule=text, generate_max_len=3072), state)


def make_samples(truncated: int, limit: int, of: int = 10) -> list[SimpleNamespace]:
    return [make_sample(limit, truncated=float(number < truncated)) for number in range(of)]


def make_sample(limit: int, **info: float) -> SimpleNamespace:
    return SimpleNamespace(
        info={name: torch.tensor([value]) for name, value in {"length_limit": limit, **info}.items()}
    )


def test_a_schedule_is_read():
    assert parse("1024, 2048@50,3072@12.5%") == (Stage(1024), Stage(2048, step=50), Stage(3072, truncated=0.125))


@pytest.mark.parametrize(
    "text",
    [
        "", "1024,2048", "24@2,48", "36,48@1", "1024,2048@", "1024,2048@x", "2048,1024@5", "1024,2048@50,3072@50",
        "0,5@5", "1024,2048@0%", "1024,2048@101%", "1024;2048@5", "-5,6@5", "1024,,2048@5",
    ],
)  # fmt: skip
def test_an_invalid_schedule_is_refused_with_an_example(text):
    with pytest.raises(UserError) as refused:
        parse(text)
    assert "1024,2048@" in refused.value.problem.remedy and "write" not in refused.value.problem.what


def test_steps_alone_can_set_the_limit():
    """A resumed run needs no memory of them, and may get another schedule."""
    one = make_schedule("1024,2048@50,3072@100")
    assert [one.limit(step) for step in (1, 49, 50, 99, 100, 10_000)] == [1024, 1024, 2048, 2048, 3072, 3072]
    assert make_schedule(None).limit(1) == 3072, "without a schedule, the flag"


def test_limit_grows_after_lasting_truncation():
    one, limits = make_schedule("1024,2048@20%,3072@20%"), []
    truncated = [9] + [0] * WINDOW + [2] * (3 * WINDOW)
    for step, count in enumerate(truncated, start=1):
        limits.append(one.limit(step))
        one.count_truncated(step, make_samples(count, limits[-1]))
    grown = limits.index(2048)
    assert limits[:grown] == [1024] * (1 + 2 * WINDOW)  # one bad step is forgotten; then five in a row are 20%
    assert limits[grown : grown + WINDOW] == [2048] * WINDOW and limits[grown + WINDOW] == 3072


def test_cut_thoughts_let_the_limit_grow():
    """Under a thinking budget `truncated` is the answer's, which keeps its part of any limit."""
    one = make_schedule("1024,3072@50%")
    cut = [
        make_sample(1024, truncated=answer, thinking_truncated=thought)
        for answer, thought in ((0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (0.0, 0.0))
    ]
    for step in range(1, 1 + WINDOW):
        assert one.limit(step) == 1024
        state = one.count_truncated(step, cut)
    assert state["truncated"] == [0.5] * WINDOW, "a sample whose thought and answer were cut is one"
    assert one.limit(1 + WINDOW) == 3072


def test_samples_drawn_before_the_limit_grew_do_not_count_for_the_new_one():
    """--pipeline: each batch is drawn before the one before it is counted."""
    one, limits = make_schedule("1024,2048@50%,3072@50%"), [1024]
    for step in range(1, 2 * WINDOW + 3):
        limits.append(one.limit(step + 1))
        one.count_truncated(step, make_samples(10, limits[step - 1]))
    assert limits == [1024] * (WINDOW + 1) + [2048] * (WINDOW + 1) + [3072]


@given(st.lists(st.integers(0, 10), max_size=30), st.data())
def test_resumed_run_has_the_limits_of_an_uninterrupted_run(truncated, data):
    text = "256,512@20%,1024@9,2048@50%"
    stop = data.draw(st.integers(0, len(truncated)))

    def run(one: Schedule, first: int, last: int) -> tuple[list[int], dict]:
        limits, state = [], {}
        for step in range(first, last + 1):
            limits.append(one.limit(step))
            state = one.count_truncated(step, make_samples(truncated[step - 1], limits[-1]))
        return limits, state

    whole, _ = run(make_schedule(text), 1, len(truncated))
    begun, state = run(make_schedule(text), 1, stop)
    state = json.loads(json.dumps(state))  # as in a checkpoint, which holds plain values
    resumed, _ = run(make_schedule(text, state or None), stop + 1, len(truncated))
    assert begun + resumed == whole
