"""The problems of an evaluation, from a file that `python -m data.prepare` has written, and their tokens."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from grpo.rollout.harmony import renderer
from grpo.rollout.problem_files import Row, read_rows
from grpo.rollout.response_text import make_record_fields
from grpo.run.records import name_problem
from grpo.stack.hub import explain
from grpo.stack.problem import UserError
from reward.answers import is_gradable, parse_label

Reader = Literal["grader", "environment", "reward"]


@dataclass(frozen=True)
class EvalProblem:
    """One problem: the prompt and the gold answer.

    A reward of the user's own may read labels of any form, and its prompts may be messages.
    """

    id: str
    prompt: Any
    label: Any
    datasource: str

    def as_trained(self, prompt: str) -> "EvalProblem":
        """Return the problem as a run has it: with the prompt that the engines get, which names it if nothing does."""
        return replace(
            self, prompt=prompt, id=name_problem(prompt) if self.id == _name_prompt(self.prompt) else self.id
        )


def read_problems(file: Path, reader: Reader = "grader") -> list[EvalProblem]:
    """Return the problems of a prepared `.jsonl` file, in file order.

    Args:
        reader: who reads the labels. An environment gets texts as they are, a reward of the user's own values of any
            form. For both, a problem without an id is named by the hash of its prompt.

    Raises:
        UserError: if the file is missing or empty, or a line is invalid, also for a run, or has no unique id.
    """
    remedy = "write it with python -m data.prepare" if reader == "grader" else "give prompt and label in every line"
    problems: dict[str, EvalProblem] = {}
    try:
        for number, row in read_rows(file, "prompt", "label"):
            try:
                problem = _parse(row, reader)
                if problem.id in problems:
                    raise ValueError(f"an earlier line has the same id {problem.id}")
            except ValueError as error:
                raise UserError(f"{file}, line {number}: {error}", remedy) from None
            problems[problem.id] = problem
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})", remedy) from None
    if not problems:
        raise UserError(f"{file} has no problems", remedy)
    return list(problems.values())


def _parse(row: Row, reader: Reader) -> EvalProblem:
    prompt, label = row["prompt"], row["label"]
    if reader != "reward" and not (isinstance(prompt, str) and prompt.strip()):
        raise ValueError("'prompt' is no text")
    id = row.get("id") or (None if reader == "grader" else _name_prompt(prompt))
    if not isinstance(id, str) or not id.strip():
        raise ValueError("'id' is missing or empty")
    if reader == "environment" and not isinstance(label, str):
        raise ValueError("'label' is not text")
    if reader == "grader" and not is_gradable(label := parse_label(label).answer):
        raise ValueError(
            f"the grader cannot read the answer {label!r}; give --reward, or answers in digits or \\text{{}}"
        )
    return EvalProblem(id, prompt, label, str(row.get("datasource", "default")))


def _name_prompt(prompt: Any) -> str:
    return name_problem(prompt if isinstance(prompt, str) else json.dumps(prompt))


def derive_seed(seed: int, problem: str, number: int) -> int:
    """Return the seed of one sample, below 2**56, derived from the evaluation's seed, the problem and the number.

    A sample is therefore the same in any order, beside any number of others, and after an interruption.
    """
    digest = hashlib.sha256(f"{seed} {problem} {number}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


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
            raise UserError(f"the tokenizer of {model} cannot be loaded ({error})", explain(str(error))) from None
        if not self.tokenizer.chat_template:
            raise UserError(f"{model} has no chat template", "add chat_template.jinja to it")
        self.variables = dict(variables)
        self.render = renderer(self.tokenizer, variables)  # a prompt as the tokens that the engine gets

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special additions."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def record(self, tokens: list[int], finish_reason: str, logs: Mapping[str, float]) -> dict[str, Any]:
        """Return the generated part of a sample's record (see :mod:`grpo.run.records`).

        Args:
            logs: of a sample under a thinking budget, as :func:`eval.engine.draw` returns them; {} without one.
        """
        text = make_record_fields(self.tokenizer, tokens, finish_reason == "length") | {"finish_reason": finish_reason}
        known = {name: value if math.isfinite(value) else None for name, value in logs.items()}
        return text | known | {"answer_length": text["answer_length"]}
