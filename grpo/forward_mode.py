"""The mode in which the actor computes log-probs without gradients."""

from typing import Any

from torch import nn


def router_logits(args: Any) -> bool:
    """Say whether the router's logits are computed: only the balancing loss of a mixture of experts reads them."""
    return args.aux_loss_coef > 1e-8  # where OpenRLHF's ActorPPOTrainer adds the loss


def training_path(model: nn.Module) -> None:
    """Put ``model`` into the mode of the training step, except that nothing is dropped out.

    In eval mode on a GPU, transformers' ``GptOssExperts`` runs every expert for every token; the training path runs
    the chosen ones, and is also the path whose log-probs the importance ratio compares with.
    """
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
