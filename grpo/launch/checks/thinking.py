"""The thinking budget: the delimiter must be tokens of the model, and everything must fit."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from grpo.environments.settings import has_environment
from grpo.launch.config import Config
from grpo.rollout.thinking import Delimiter, DelimiterError, delimiter
from grpo.stack.problem import Problem
from grpo.train.lengths import Schedule


def check_thinking(config: Config) -> Iterator[Problem]:
    """Check the budgets against the response length, and the delimiter with the actor's tokenizer.

    Without a tokenizer, the delimiter counts as one token, which it has at least.
    """
    args = config.args
    if args.thinking_budget is None or args.answer_budget is None:
        return  # other checks report what is missing
    try:
        made = read_delimiter(args)
    except DelimiterError as error:
        yield Problem(error.problem.what, f"set THINKING_DELIMITER: {error.problem.remedy}")
        return
    except OSError as error:
        yield Problem(str(error), "download or copy the checkpoint again")
        return
    size, least = (len(made.tokens), "") if made else (1, "at least ")
    needed = args.thinking_budget + size + args.answer_budget
    if needed > args.generate_max_len:
        yield Problem(
            f"THINKING_BUDGET {args.thinking_budget} + delimiter {least}{size} + ANSWER_BUDGET {args.answer_budget} = "
            f"{needed} tokens, but GENERATE_MAX_LEN is {args.generate_max_len}: thinking would be cut earlier",
            f"set GENERATE_MAX_LEN to {least}{needed}, or lower a budget",
        )
    yield from _first_limit(args, size)
    sampled, last = args.thinking_budget + args.answer_budget, args.generate_max_len
    is_single = not has_environment(args)  # a conversation has several such responses
    if is_single and args.overlong_buffer_len is not None and sampled <= last - args.overlong_buffer_len:
        yield Problem(
            f"OVERLONG_BUFFER {args.overlong_buffer_len:g} has no effect: the penalty begins above "
            f"{last - args.overlong_buffer_len:g} tokens, but the budgets limit responses to {sampled}",
            f"set OVERLONG_BUFFER above {last - sampled}, or unset it",
        )


def read_delimiter(args: Namespace) -> Delimiter | None:
    """Return the thinking delimiter for the actor's tokenizer; None if the tokenizer is missing.

    Raises:
        DelimiterError: if this tokenizer cannot encode it.
        OSError: if the tokenizer cannot be read.
    """
    file = Path(args.pretrain) / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer  # imports in a fifth of a second

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise OSError(f"{file} cannot be read ({error})") from None
    return delimiter(args.thinking_delimiter, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def _first_limit(args: Namespace, delimiter: int) -> Iterator[Problem]:
    """Check the first stage of LENGTH_SCHEDULE: it may shorten the thinking, but must leave some."""
    try:
        first = Schedule(args).limit(1)
    except ValueError:
        return  # another check reports an invalid schedule
    least = delimiter + args.answer_budget + min(args.thinking_budget, 1)
    if args.length_schedule is not None and first < least:
        yield Problem(
            f"LENGTH_SCHEDULE begins with {first} tokens; delimiter {delimiter} + ANSWER_BUDGET {args.answer_budget} "
            "leave none for the thinking",
            f"begin with {least} or more, or lower ANSWER_BUDGET",
        )
