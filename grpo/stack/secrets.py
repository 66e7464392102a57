"""Which environment variables hold secrets, judged by their names."""

import re
from typing import Any

from grpo.stack.upstream.arguments import Arguments

SECRET_WORDS = {"KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "SECRET", "SECRETS", "AUTH"} | {
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "CREDENTIALS",
}


def is_secret(name: str) -> bool:
    """Return whether a variable's name contains a word for a secret: HF_TOKEN does, TIKTOKEN_DIR does not."""
    return not SECRET_WORDS.isdisjoint(re.split(r"[^A-Z]+", name.upper()))


def without_wandb_key(args: Arguments) -> dict[str, Any]:
    """Return OpenRLHF's arguments for Weights & Biases without ``use_wandb``, whose value may be the API key."""
    return {name: value for name, value in vars(args).items() if name != "use_wandb"}
