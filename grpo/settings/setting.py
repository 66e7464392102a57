"""What a setting is: a variable with a type, a default and a check."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo.stack.problem import UserError


@dataclass(frozen=True)
class Check:
    """A condition on a value, and its words after "give"."""

    wanted: str
    holds: Callable[[Any], bool]


def at_least(low: float, wanted: str = "") -> Check:
    return Check(wanted or f"{low:g} or more", lambda value: low <= value < math.inf)


def above(low: float, wanted: str = "") -> Check:
    return Check(wanted or f"more than {low:g}", lambda value: low < value < math.inf)


SHARE = Check("a share from 0 to 1", lambda value: 0 <= value <= 1)
POSITIVE_SHARE = Check("a share above 0, up to 1", lambda value: 0 < value <= 1)


@dataclass(frozen=True)
class Setting:
    """A setting.

    Attributes:
        name: of the environment variable.
        kind: of its value: str, int, float, or bool, which is 1 (on) or 0 (off).
        help: for docs/settings.md: what it sets, its unit, and what empty means.
        default: as text; None if it stands in train_grpo.sh. "" often stands for a value that follows from others.
        flag: that it becomes for the trainer; "" if it becomes none.
        is_ours: whether the flag is one that we add to OpenRLHF's.
        more: words that follow the flag of a switch that is on.
        also: a further flag of the trainer that gets the same value.
        choices: all values; () for any.
        check: of each single value.
        count: how many values it has, separated by blanks: 1, 2, or 0 for any number.
        only_with: a setting without which this one has no effect; its flag is left out then.
        may_be_empty: whether an empty variable in the environment is a value; otherwise it is as if it were not set.
    """

    name: str
    kind: type
    help: str
    default: str | None = None
    flag: str = ""
    is_ours: bool = False
    more: tuple[str, ...] = ()
    also: str = ""
    choices: tuple[str, ...] = ()
    check: Check | None = None
    count: int = 1
    only_with: str = ""
    may_be_empty: bool = False

    def value(self, text: str) -> Any:
        """Return the typed value; None for "", and a list if the setting has several values.

        Raises:
            UserError: if the text is not one of the choices, has the wrong type, or is empty where a value is required.
        """
        if self.kind is bool:
            if text not in ("0", "1"):
                raise UserError(f"{self.name} is {text!r}", "set it to 1 (on) or 0 (off)")
            return text == "1"
        if not text:
            if self.default != "" and "Empty:" not in self.help:
                raise UserError(f"{self.name} is empty", "give a value")
            return None
        if self.choices and (error := self.problem(text)):
            raise error
        if self.count == 1:
            return self._convert(text)
        words = text.split()
        if self.count and len(words) != self.count:
            raise UserError(f"{self.name} is {text!r}", f"give {self.count} numbers, separated by a blank")
        return [self._convert(word) for word in words]

    def problem(self, value: Any) -> UserError | None:
        """Return what is wrong with a typed value; None if it is good or not set."""
        if self.choices and value not in (None, *self.choices):
            return UserError(f"{self.name} is {value!r}", f"use one of {', '.join(self.choices)}")
        values = value if isinstance(value, list | tuple) else [value]
        if self.check is None or all(one is None or self.check.holds(one) for one in values):
            return None
        shown = " ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)
        return UserError(f"{self.name} is {shown}", f"give {self.check.wanted}")

    def parse_checked(self, text: str) -> Any:
        """Return the typed value.

        Raises:
            UserError: if the text is no good value.
        """
        value = self.value(text)
        if error := self.problem(value):
            raise error
        return value

    def _convert(self, text: str) -> Any:
        try:
            return self.kind(text)
        except ValueError:
            wanted = {int: "a whole number", float: "a number"}[self.kind]
            raise UserError(f"{self.name} is {text!r}", f"give {wanted}") from None
