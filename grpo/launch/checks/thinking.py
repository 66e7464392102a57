"""The thinking budget: the delimiter must be tokens of the model, and everything must fit."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from grpo.launch.config import Config
from grpo.rollout.thinking import Budget, Delimiter, delimiter
from grpo.stack.json_files import read_bytes
from grpo.stack.problem import Problem, UserError
from grpo.train.lengths import parse_stages


def check_thinking(config: Config) -> Iterator[Problem]:
    """Check the budgets against the response length, and the delimiter with the actor's tokenizer.

    Without a tokenizer, the delimiter counts as one token, which it has at least.
    """
    args = config.args
    if args.thinking_budget is None or args.answer_budget is None:
        return  # the flags' check reports what is missing
    try:
        made = _read_delimiter(args)
    except UserError as error:
        yield Problem(f"--thinking_delimiter: {error.problem.what}", error.problem.remedy)
        return
    size = len(made.tokens) if made else 1
    needed = args.thinking_budget + size + args.answer_budget
    if needed > args.generate_max_len:
        what = f"--thinking_budget {args.thinking_budget} + delimiter {size} + --answer_budget {args.answer_budget}"
        remedy = f"set --generate_max_len to at least {needed}, or lower a budget"
        yield Problem(f"{what} = {needed} tokens, but --generate_max_len is {args.generate_max_len}", remedy)
        return
    try:
        first = parse_stages(args)[0].length
    except UserError:
        return  # the flags' check explains it
    if first <= size + args.answer_budget and args.thinking_budget:
        what = f"--length_schedule begins with {first} tokens, which leaves none for the thinking"
        yield Problem(what, f"begin with more than {size + args.answer_budget}, or lower --answer_budget")


def describe(args: Namespace) -> list[str]:
    """Return a line on how budget, delimiter and schedule combine; [] without a budget, or if the check refuses one."""
    if args.thinking_budget is None or args.answer_budget is None:
        return []
    try:
        budget, made, stages = (
            Budget(args.thinking_budget, args.answer_budget),
            _read_delimiter(args),
            parse_stages(args),
        )
        size = len(made.tokens) if made else 0
        left = [budget.within(stage.length, size).thinking for stage in stages]
    except UserError:
        return []
    if made is None:
        return [f"thinking    {budget.thinking}, a delimiter, and an answer of {budget.answer} tokens"]
    whole = budget.thinking + size + budget.answer
    is_limited = args.length_schedule and min(left) < budget.thinking
    more = f"; the length schedule limits the thinking to {', '.join(map(str, left))}" if is_limited else ""
    parts = f"{budget.thinking} + delimiter {size} + answer {budget.answer} = {whole}"
    return [f"thinking    {parts} of {args.generate_max_len} tokens{more}"]


def _read_delimiter(args: Namespace) -> Delimiter | None:
    """Return the thinking delimiter for the actor's tokenizer; None if the tokenizer is missing.

    Raises:
        UserError: if this tokenizer cannot encode it, or cannot be read.
    """
    file = Path(args.pretrain) / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer  # imports in a fifth of a second

    try:
        tokenizer = Tokenizer.from_buffer(read_bytes(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise UserError(f"{file} cannot be read ({error})", "download or copy the checkpoint again") from None
    return delimiter(args.thinking_delimiter, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
