import pickle

import pytest

from grpo.environments.environment import SetupError
from grpo.model.model_files import CheckpointError
from grpo.rollout.thinking import DelimiterError
from grpo.stack.problem import UserError


@pytest.mark.parametrize("kind", [UserError, CheckpointError, DelimiterError, SetupError])
def test_an_error_from_a_ray_actor_keeps_its_remedy(kind):
    error = pickle.loads(pickle.dumps(kind("the disk is full", "make room")))
    assert type(error) is kind
    assert (error.problem.what, error.problem.remedy) == ("the disk is full", "make room")
    assert str(error) == "the disk is full: make room"


def test_problem_without_a_remedy_mentions_none():
    assert str(UserError("the disk is full")) == str(UserError("the disk is full").problem) == "the disk is full"


def test_a_printed_problem_has_its_remedy_on_a_line_of_its_own():
    assert str(UserError("--n is 0", "give 1 or more").problem) == "--n is 0\n    -> give 1 or more"


def test_the_remedy_comes_after_a_list_of_what_is_wrong():
    assert str(UserError("2 bad rows:\n  1\n  2", "remove them")) == "2 bad rows:\n  1\n  2\nremove them"
