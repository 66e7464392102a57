r"""The parts of a spelled text: elements of a list, sides of a relation, and what a pair of brackets encloses."""

import re
from collections.abc import Callable

# Matching collections takes time that grows with the square of this.
MAX_PARTS = 64

_TOKEN = re.compile(
    r"\\text ?\{[^{}]*\}|\\(?:begin|end)\{[a-zA-Z]*\}|\\[A-Za-z]+|\\.|,? ?\b(?:and|or)\b|[<>]=|!=|.", re.DOTALL
)
_OPEN = {"{", "(", "[", "\\{", "\\langle", "\\lfloor", "\\lceil", "\\begin"}
_CLOSE = {"}", ")", "]", "\\}", "\\rangle", "\\rfloor", "\\rceil", "\\end"}
_AND = re.compile(r"(?:\\text ?\{[ ,]*(?:and|or)[ ,]*\}|,? ?(?:and|or)|[,;]|\\quad|\\l(?:and|or)|\\\\)\Z")
_GROUPED = re.compile(r" ?(?!0+,)[0-9]{1,3}(?:,[0-9]{3})+ ?\Z")
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\le": "\\le", "\\ge": "\\ge", "<=": "\\le", ">=": "\\ge", "\\ne": "\\ne",
    "!=": "\\ne", "\\in": "\\in",
}  # fmt: skip


class Unreadable(ValueError):
    """An answer with too many parts or levels."""


def split_list(text: str) -> list[str]:
    """The elements between commas, semicolons and "and" or "or". Raises Unreadable."""
    return merge_elements(*split(text, lambda token: bool(_AND.match(token))))


def split_relation(text: str) -> tuple[list[str], list[str]]:
    r"""The sides of a relation, and the signs between them: `=`, `<`, `\le` and so on. Raises Unreadable."""
    sides, operators = split(text, _RELATIONS.__contains__)
    return sides, [_RELATIONS[token] for token in operators]


def split(text: str, separates: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """The pieces of `text` between separating tokens outside of all brackets, and those tokens."""
    pieces, separators = [], []
    depth = start = 0
    for token in _TOKEN.finditer(text):
        name = token[0].partition("{")[0] if token[0].startswith(("\\begin", "\\end")) else token[0]
        if name in _OPEN:
            depth += 1
        elif name in _CLOSE:
            depth -= 1
        elif depth == 0 and separates(token[0].strip()):
            pieces.append(text[start : token.start()])
            separators.append(token[0].strip())
            start = token.end()
            if len(pieces) > MAX_PARTS:
                raise Unreadable("too many parts")
    return [*pieces, text[start:]], separators


def split_enclosed(text: str) -> tuple[str, str, str] | None:
    """(opening bracket, closing bracket, content) if one pair encloses all of `text`."""
    depth, opening = 0, ""
    for token in _TOKEN.finditer(text):
        name = token[0].partition("{")[0] if token[0].startswith(("\\begin", "\\end")) else token[0]
        if token.start() == 0:
            if name not in ("(", "[", "{", "\\{", "\\langle"):
                return None
            opening = name
        if name in _OPEN:
            depth += 1
        elif name in _CLOSE:
            depth -= 1
            if depth == 0:
                return (opening, name, text[len(opening) : token.start()]) if token.end() == len(text) else None
    return None


def merge_elements(pieces: list[str], separators: list[str]) -> list[str]:
    """The elements of a list. If only some commas have a blank, the others belong to numbers: (1,234, 5) is a pair."""
    groups = [pieces[0]]
    for separator, piece in zip(separators, pieces[1:], strict=True):
        if separator != "," or piece.startswith(" ") or groups[-1].endswith(" "):
            groups.append(piece)
        else:
            groups[-1] += f",{piece}"
    is_mixed = 1 < len(groups) < len(pieces)
    if not is_mixed or not all("," not in group or _GROUPED.match(group) for group in groups):
        return pieces
    return [group.replace(",", "") for group in groups]
