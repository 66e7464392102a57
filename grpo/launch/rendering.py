"""Renders prompts in a separate process, where transformers skips torch: 2 seconds instead of 10.

python -m grpo.launch.rendering MODEL_DIR VARIABLES_JSON <PROMPTS.json
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo.stack.checkout import CHECKOUT
from grpo.stack.counted import counted
from grpo.stack.problem import UserError

# On a slow and busy machine; what takes longer does not end.
START_SECONDS, PROMPT_SECONDS = 120.0, 0.05


class Rendered(NamedTuple):
    """A prompt as the engines get it: how many tokens it has, and its text."""

    tokens: int
    text: str


def render(model: str, prompts: Sequence[Any], variables: Mapping[str, Any]) -> list[Rendered]:
    """Return each prompt as the engines get it.

    Args:
        model: a folder with tokenizer and template.
        prompts: each the user's message, or a list of messages.
        variables: of the chat template, see :func:`grpo.rollout.chat_template.variables`.

    Raises:
        UserError: if the model's tokenizer or template cannot be used.
    """
    seconds = START_SECONDS + PROMPT_SECONDS * len(prompts)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "grpo.launch.rendering", model, json.dumps(dict(variables))],
            cwd=CHECKOUT,
            env={**os.environ, "USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error"},
            input=json.dumps(prompts),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        what = f"the chat template of {model} took more than {seconds:g} s for {counted(len(prompts), 'prompt')}"
        raise UserError(what, "correct its endless loop, or download the checkpoint again") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(
            f"the tokenizer of {model} cannot render prompts ({reason})", "download or copy the checkpoint again"
        )
    return [Rendered(*each) for each in json.loads(done.stdout)]


def main() -> int:
    """Print the prompts as a JSON list, or fail with a traceback."""
    from data.checks import render

    model, variables = sys.argv[1:]
    rendered = render(model, json.load(sys.stdin), json.loads(variables))
    print(json.dumps([(len(tokens), text) for tokens, text in rendered]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
