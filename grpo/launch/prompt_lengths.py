"""Counts the tokens of prompts in a separate process, where transformers skips torch: 2 seconds instead of 10.

python -m grpo.launch.prompt_lengths MODEL_DIR VARIABLES_JSON <PROMPTS.json
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError


def count(model: str, prompts: Sequence[Any], variables: Mapping[str, Any] = MappingProxyType({})) -> list[int]:
    """Return the number of tokens of each prompt under the model's chat template.

    Args:
        model: a folder with tokenizer and template.
        prompts: each the user's message, or a list of messages.
        variables: passed to the template.

    Raises:
        UserError: if the model's tokenizer or template cannot be used.
    """
    done = subprocess.run(
        [sys.executable, "-m", "grpo.launch.prompt_lengths", model, json.dumps(dict(variables))],
        cwd=CHECKOUT,
        env={**os.environ, "USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error"},
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(
            f"the tokenizer of {model} cannot count prompts ({reason})", "download or copy the checkpoint again"
        )
    return json.loads(done.stdout)


def main() -> int:
    """Print the lengths as a JSON list, or fail with a traceback."""
    from data.checks import prompt_lengths

    model, variables = sys.argv[1:]
    print(json.dumps(prompt_lengths(model, json.load(sys.stdin), **json.loads(variables))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
