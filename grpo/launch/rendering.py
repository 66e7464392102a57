"""Renders prompts in a separate process, where transformers skips torch: 2 seconds instead of 10.

python -m grpo.launch.rendering MODEL_DIR VARIABLES_JSON SECONDS <PROMPTS.json
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grpo.stack.checkout import CHECKOUT
from grpo.stack.counted import format_count
from grpo.stack.problem import UserError

# Of a prompt, in seconds of a processor: a template that takes longer has a loop without end.
LONGEST = 5.0
# Of all, in seconds on a slow and busy machine.
START_SECONDS, PROMPT_SECONDS = 120.0, 0.05
_TEMPLATE = "correct the chat template, or use that of the released gpt-oss"


class Rendered(NamedTuple):
    """A prompt as the engines get it: how many tokens it has, and its text."""

    tokens: int
    text: str


def render(model: str, prompts: Sequence[Any], variables: Mapping[str, Any]) -> list[Rendered]:
    """Return each prompt as the engines get it.

    Args:
        model: a folder with tokenizer and template, or a hub id.
        prompts: each the user's message, or a list of messages.
        variables: of the chat template, see :func:`grpo.rollout.chat_template.variables`.

    Raises:
        UserError: if the model's tokenizer or template cannot be used.
    """
    seconds = START_SECONDS + PROMPT_SECONDS * len(prompts)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "grpo.launch.rendering", model, json.dumps(dict(variables)), str(LONGEST)],
            cwd=CHECKOUT,
            env={**os.environ, "USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error"},
            input=json.dumps(prompts),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        what = f"the chat template of {model} took more than {seconds:g} s for {format_count(len(prompts), 'prompt')}"
        raise UserError(what, _TEMPLATE) from None
    if done.returncode == -signal.SIGPROF:
        longest = max(len(json.dumps(prompt)) for prompt in prompts)
        what = (
            f"a prompt takes more than {LONGEST:g} s in the chat template of {model}; the longest has {longest:,} bytes"
        )
        raise UserError(what, f"{_TEMPLATE}; or shorten that prompt")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        if reason.startswith(("ImportError", "ModuleNotFoundError")):
            raise UserError(f"no prompt can be rendered: a package is broken ({reason})", "run ./scripts/setup.sh")
        remedy = _TEMPLATE if reason.startswith("jinja2.") else "download or copy the checkpoint again"
        raise UserError(f"the tokenizer of {model} cannot render prompts ({reason})", remedy)
    return [Rendered(*each) for each in json.loads(done.stdout)]


def _limit_time(prompts: list[Any], seconds: float) -> Iterator[Any]:
    """Yield the prompts. If one takes more of a processor, the signal ends this process, even in compiled code."""
    for prompt in prompts:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield prompt
    signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> int:
    """Print the prompts as a JSON list, or fail with a traceback."""
    from transformers import AutoTokenizer

    from grpo.rollout.prompts import renderer
    from grpo.rollout.response_text import decode_tokens

    model, variables, seconds = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = _limit_time(json.load(sys.stdin), float(seconds))
    rendered = map(renderer(tokenizer, json.loads(variables)), prompts)
    print(json.dumps([(len(tokens), decode_tokens(tokenizer, tokens)) for tokens in rendered]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
