"""The mode in which the actor computes log-probs without gradients."""

from torch import nn


def training_path(model: nn.Module) -> None:
    """Put ``model`` into the mode of the training step, except that nothing is dropped out.

    In eval mode on a GPU, transformers' ``GptOssExperts`` runs every expert for every token; the training path runs
    the chosen ones, and is also the path whose log-probs the importance ratio compares with.
    """
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
