r"""Every argument of LaTeX's commands in braces: `\frac12` is `\frac{1}{2}`, and `x^\pi` is `x^{\pi}`.

LaTeX takes a group or a single token as an argument. Here, a command takes its own arguments along: `\sqrt\frac12` is
`\sqrt{\frac{1}{2}}`. Three forms take more than LaTeX's single token, since nobody means what LaTeX sets:
- `2^10`, `x_12` and `\sqrt12` take the whole number. `\log_28` is still the logarithm of 8 to base 2, and
  `\frac\sqrt21` still has two arguments: only the last one of a command takes a whole number, so `\frac{2}\sqrt12` is
  `\frac{2}{\sqrt{12}}`.
- `10^-5` takes the sign with what follows it.
- `2^(x+1)` and `\sqrt(x)` take the brackets with their content.
"""

import re

_COUNTS = {
    **dict.fromkeys(("\\frac", "\\binom"), 2),
    **dict.fromkeys(("^", "_", "\\sqrt", "\\mathbb", "\\mathcal", "\\operatorname"), 1),
    **dict.fromkeys(("\\overline", "\\bar", "\\hat", "\\widehat", "\\vec", "\\overrightarrow"), 1),
}
_GREEDY = ("^", "_", "\\sqrt")
_NEEDED = re.compile(r"[\^_]|\\(?:frac|binom|sqrt|math|operator|overline|bar|hat|widehat|vec|overright)")
# Words are one token, and so is a number.
_TOKEN = re.compile(r"\\text ?\{[^{}]*\}|\\[A-Za-z]+|\\.|[0-9]*\.?[0-9]+|.", re.DOTALL)
# An argument before one of these is missing.
_NO_ARGUMENT = frozenset("})]&,;=^_")
# `structure` refuses deeper answers, so they need no deep stack here.
_MAX_DEPTH = 40


class _TooDeep(Exception):
    """More levels than any answer has."""


def brace(text: str) -> str:
    """The text with every argument in braces. Takes time in proportion to the text; raises nothing."""
    if not _NEEDED.search(text):
        return text
    try:
        return _Reader(text).sequence(None, 0)
    except _TooDeep:
        return text


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.at = 0
        self.partners = _partners(self.tokens)

    def sequence(self, end: int | None, depth: int) -> str:
        """The items up to the token number `end`, or up to the brace that closes them."""
        parts = []
        while self.at < len(self.tokens) and self.at != end:
            if self.tokens[self.at] == "}" and depth and end is None:
                break
            parts.append(self._item(depth))
        return "".join(parts)

    def _item(self, depth: int, takes_numbers: bool = True) -> str:
        """One token with its arguments, or one group."""
        if depth > _MAX_DEPTH:
            raise _TooDeep
        token = self.tokens[self.at]
        self.at += 1
        if token == "{":
            return self._group(depth)
        if token not in _COUNTS:
            return token
        index = self._root_index() if token == "\\sqrt" else ""
        takes_numbers = takes_numbers and token in _GREEDY
        count = _COUNTS[token]
        arguments = [self._argument(token, depth + 1, takes_numbers, index == count - 1) for index in range(count)]
        return token + index + "".join(arguments)

    def _group(self, depth: int) -> str:
        inner = self.sequence(None, depth + 1).strip(" ")
        if self.at == len(self.tokens):
            return "{" + inner
        self.at += 1
        return "{" + inner + "}"

    def _root_index(self) -> str:
        self._skip_blanks()
        end = self.partners.get(self.at, 0) if self._next() == "[" else 0
        if not end:
            return ""
        begin, self.at = self.at, end + 1
        return "".join(self.tokens[begin : self.at]).replace(" ", "")

    def _argument(self, command: str, depth: int, takes_numbers: bool, is_last: bool) -> str:
        before = self.tokens[self.at - 2] if self.at > 1 else ""
        self._skip_blanks()
        token = self._next()
        if not token or token in _NO_ARGUMENT:
            return ""
        if token == "{":
            return self._item(depth)
        if command in _GREEDY:
            if token == "(" and self.at in self.partners:
                end = self.partners[self.at]
                self.at += 1
                inner = self.sequence(end, depth + 1)
                self.at += 1
                return "{(" + inner + ")}"
            if token in "+-" and command in "^_" and self._next(1) not in ("", "}", ")", " ", "("):
                self.at += 1
                argument = self._argument(command, depth + 1, True, True)
                return "{" + token + argument.removeprefix("{").removesuffix("}") + "}"
        if command == "_" and before == "\\log" and self._next(1) != "(":
            takes_numbers = token[0] in "01"  # which alone are no bases
        if token[0].isdigit() and len(token) > 1 and not takes_numbers:
            self.tokens[self.at] = token[1:]
            return "{" + token[0] + "}"
        return "{" + self._item(depth, is_last) + "}"  # the first of two leaves digits to the second

    def _skip_blanks(self) -> None:
        while self._next() == " ":
            self.at += 1

    def _next(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""


def _partners(tokens: list[str]) -> dict[int, int]:
    """Where the round and square brackets close that open and close on one level of braces."""
    partners: dict[int, int] = {}
    levels: list[list[int]] = [[]]
    for index, token in enumerate(tokens):
        if token == "{":
            levels.append([])
        elif token == "}" and len(levels) > 1:
            levels.pop()
        elif token in "([" and token:
            levels[-1].append(index)
        elif token in ")]" and token and levels[-1] and tokens[levels[-1][-1]] == {")": "(", "]": "["}[token]:
            partners[levels[-1].pop()] = index
    return partners
