"""Unused results of stock's Actor.forward: every check fails on the pristine files and passes on ours."""

import torch
from torch import nn

from grpo.model import loading
from tests.grpo.conftest import assert_fails_on_stock


class Watched(nn.Module):
    """A model that remembers how many positions had logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        output = self.model(*args, **kwargs)
        self.positions = output.logits.shape[1]
        return output

    def get_output_embeddings(self):
        return self.model.get_output_embeddings()


def make_actor(load, model):
    actor = load("models.actor").Actor.__new__(load("models.actor").Actor)
    nn.Module.__init__(actor)
    actor.model, actor.packing_samples, actor.temperature, actor.allocated = model, False, 1.0, None
    return actor


def test_prompts_have_no_logits(load, checkpoint):
    model = loading.load_gpt_oss(checkpoint).float().eval()
    watched = Watched(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 97, (2, 12), generator=generator)
    attention = torch.ones_like(ids)
    attention[0, :2], attention[1, -1] = 0, 0  # padded on both sides
    actions = torch.zeros(2, 11, dtype=torch.bool)
    actions[0, 7:], actions[1, 5:10] = True, True
    actions[1, 6] = False  # not sampled, between sampled ones

    log_probs, output = make_actor(load, watched).forward(
        ids, actions, attention, return_output=True, return_entropy=load.stock
    )

    positions = (attention.cumsum(-1) - 1).masked_fill(attention == 0, 1)
    with torch.no_grad():
        full = model(ids, attention_mask=attention, position_ids=positions).logits
    distribution = torch.distributions.Categorical(logits=full[:, :-1])
    entropy = output.entropy if load.stock else output.scores.entropy[:, :-1]
    assert log_probs.shape == entropy.shape == actions.shape
    torch.testing.assert_close(log_probs, distribution.log_prob(ids[:, 1:]) * actions)
    torch.testing.assert_close(entropy * actions, distribution.entropy() * actions)

    def check():
        assert watched.positions == 12 - 5  # the sixth token predicts the first sampled one

    assert_fails_on_stock(load, check)
