import pickle

import pytest

from grpo.environments.environment import SetupError
from grpo.model.model_files import CheckpointError
from grpo.stack.problem import UserError


@pytest.mark.parametrize("kind", [UserError, CheckpointError, SetupError])
def test_an_error_from_a_ray_actor_keeps_its_remedy(kind):
    error = pickle.loads(pickle.dumps(kind("the disk is full", "make room")))
    assert type(error) is kind
    assert (error.problem.what, error.problem.remedy) == ("the disk is full", "make room")
    assert str(error) == "the disk is full: make room"
