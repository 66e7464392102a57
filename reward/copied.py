r"""Is an answer a formula copied from the problem? `12+34` equals 46, and says nothing that the problem does not.

String work. The formulas are compared as they are spelled, so that `34+12` is no copy of `12+34`.
"""

import re

from reward.comparison import SIGN, split
from reward.notation import rational, spell, split_unit, squeeze

# Formulas, sentences and lines of a problem, each of them short enough to be spelled.
_PIECES = re.compile(r"\$+|(?<!\\)\\[()\[\]]|\n|(?<=[.?!]) ")
_TOKEN = re.compile(r"\\[A-Za-z]+|[^ ]")
# A copy is a whole side: no sign continues it. A point ends the sentence unless a digit follows it.
_BEFORE = r"(?<![-+*/^_\\({}0-9A-Za-z.)])(?<![-+*/^_({}0-9)] )"
_AFTER = r"(?![A-Za-z0-9]|\.[0-9]| ?(?:[-+*/^_!({]|\\(?!text)))"


def is_copied(answer: str, gold: str, prompt: str) -> bool:
    """Whether an answer is a formula of the prompt, and is neither a number nor spelled like the gold answer."""
    said = _value(answer)
    if not re.search("[^A-Za-z]", said) or rational(said) is not None or said == _value(gold):
        return False
    formula = re.compile(_BEFORE + " *".join(map(re.escape, _TOKEN.findall(said))) + _AFTER)
    return any(formula.search(spell(piece)) for piece in _PIECES.split(prompt) if piece)


def _value(text: str) -> str:
    """The last side of an equation, or a whole text, spelled and without its unit and brackets."""
    text = spell(text)
    sides, signs = split(text, SIGN)
    side = squeeze(split_unit(sides[-1] if set(signs) <= {"="} else text)[0].strip())
    return side[1:-1] if re.match(r"\([^()]*\)\Z", side) and "," not in side else side
