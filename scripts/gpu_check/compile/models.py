"""The shapes that kernels are compiled at: of the released models, and of the one of `./train_grpo.sh --tiny`."""

from transformers import GptOssConfig

from grpo.model.released import RELEASED
from scripts.tiny_model.warm_start import tiny_config

WORKERS = (1, 2)  # GPUs of an engine


def models() -> dict[str, GptOssConfig]:
    """Return a configuration by a model's name."""
    released = {name.rpartition("/")[2]: GptOssConfig(**shape.config()) for name, shape in RELEASED.items()}
    return released | {"tiny": tiny_config(512)}
