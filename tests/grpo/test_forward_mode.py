from torch import nn

from grpo import forward_mode


def test_the_training_path_drops_nothing_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
    forward_mode.training_path(model)
    assert model[0].training
    assert not model[1].training
