"""Converts problems to a model's tokens and back, with its own tokenizer and chat template."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.problems import EvalProblem
from grpo.rollout.prompts import renderer
from grpo.rollout.response_text import make_record_fields
from grpo.stack.problem import UserError


class Chat:
    """A model's tokenizer and template.

    Args:
        model: the model's folder.
        variables: of the template, see :func:`grpo.rollout.chat_template.variables`; also an attribute.

    Raises:
        UserError: if the model has no tokenizer or chat template.
    """

    def __init__(self, model: Path, variables: Mapping[str, Any]) -> None:
        from transformers import AutoTokenizer  # takes seconds

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise UserError(
                f"the tokenizer of {model} cannot be loaded ({error})", "download the whole model"
            ) from None
        if not self.tokenizer.chat_template:
            raise UserError(f"{model} has no chat template", "add chat_template.jinja to it")
        self.variables = dict(variables)
        self._render = renderer(self.tokenizer, variables)

    def prompt(self, problem: EvalProblem) -> list[int]:
        """Return the tokens that the engine gets: a chat with the problem as the user's message."""
        return self._render(problem.prompt)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special additions."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def record(self, tokens: list[int], finish_reason: str, logs: Mapping[str, float]) -> dict[str, Any]:
        """Return the generated part of a sample's record (see :mod:`grpo.run.records`).

        Args:
            logs: of a sample under a thinking budget, as in :class:`eval.engine.Sample`; {} without one.
        """
        text = make_record_fields(self.tokenizer, tokens, finish_reason == "length") | {"finish_reason": finish_reason}
        known = {name: value if math.isfinite(value) else None for name, value in logs.items()}
        return text | known | {"answer_length": text["answer_length"]}
