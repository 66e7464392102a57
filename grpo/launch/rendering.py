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
from grpo.stack.hub import explain
from grpo.stack.problem import UserError


class Rendered(NamedTuple):
    """A prompt as the engines get it: how many tokens it has, and its text."""

    tokens: int
    text: str


def render(model: str, prompts: Sequence[Any], variables: Mapping[str, Any]) -> list[Rendered]:
    """Return each prompt as the engines get it. Raises UserError if the model's tokenizer or template cannot be used.

    Args:
        model: a folder with tokenizer and template, or a hub id.
        prompts: each the user's message, or a list of messages.
        variables: of the chat template, see :func:`grpo.rollout.chat_template.variables`.
    """
    done = subprocess.run(
        [sys.executable, "-m", "grpo.launch.rendering", model, json.dumps(dict(variables))],
        cwd=CHECKOUT,
        env={**os.environ, "USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error"},
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        is_template = reason.startswith("jinja2.")
        remedy = "use the chat template of the released gpt-oss" if is_template else explain(reason)
        raise UserError(f"the tokenizer of {model} cannot render prompts ({reason})", remedy)
    return [Rendered(*each) for each in json.loads(done.stdout)]


def main() -> int:
    """Print the prompts as a JSON list, or fail with a traceback."""
    from transformers import AutoTokenizer

    from grpo.rollout.harmony import renderer
    from grpo.rollout.response_text import decode_tokens

    model, variables = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(model)
    rendered = map(renderer(tokenizer, json.loads(variables)), json.load(sys.stdin))
    print(json.dumps([(len(tokens), decode_tokens(tokenizer, tokens)) for tokens in rendered]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
