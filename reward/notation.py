r"""One spelling for short LaTeX answers that differ only in how they are written.

String work in linear time; nothing is evaluated. A percent sign, a degree sign, a currency sign and words such as
`\text{ cm}` are units. Where a gold answer of MATH ends in `\%` the question asks for a percentage, so `50\%` is 50
and not 0.5.
"""

import re
from fractions import Fraction

# Longer answers are essays; nothing here reads further.
MAX_ANSWER_CHARS = 1000

_CHARACTERS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u00d7": "\\times ", "·": "\\cdot ", "÷": "/",
        "∞": "\\infty ", "π": "\\pi ", "θ": "\\theta ",
        "√": "\\sqrt ", "±": "\\pm ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "\u222a": "\\cup ", "∈": "\\in ",
        "²": "^2", "³": "^3", "½": "\\frac12", "∅": "\\emptyset ", "\u2032": "'", "\u2019": "'", "~": " ",
    }
)  # fmt: skip
_COMMANDS = {
    **dict.fromkeys(("left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr"), ""),
    **dict.fromkeys(("displaystyle", "textstyle", "limits", "nolimits"), ""),
    **dict.fromkeys(("quad", "qquad", "thinspace", "enspace"), " "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "\\binom"),
    **dict.fromkeys(("leq", "leqslant"), "\\le"),
    **dict.fromkeys(("geq", "geqslant"), "\\ge"),
    **dict.fromkeys(("times", "ast"), "\\cdot"),
    **dict.fromkeys(("textbf", "textit", "textrm", "textnormal", "mathrm", "mathit", "mbox"), "\\text"),
    "neq": "\\ne", "lt": "<", "gt": ">", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]",
    "varnothing": "\\emptyset", "degree": "°",
}  # fmt: skip
_COMMAND = re.compile(r"\\(?:([A-Za-z]+)|(?<!\\\\)[,;:> ])")  # "\\ " ends a row of a matrix
# What plain text writes without a backslash.
_BARE_NAME = re.compile(
    r"(?<![A-Za-z\\])(?:(sqrt|pi|theta|arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|ln|log)|infinity|inf|oo)(?![A-Za-z])"
)
_ARGUMENT = r"([0-9A-Za-z]|\\pi(?![A-Za-z]))"
_SHORT_FORMS = tuple(
    (re.compile(pattern), full)
    for pattern, full in (
        (r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))", "°"),
        (rf"\\frac ?{_ARGUMENT} ?{_ARGUMENT}", r"\\frac{\1}{\2}"),
        (rf"\\frac ?{_ARGUMENT} ?(?=\{{)", r"\\frac{\1}"),
        (rf"\\frac ?(\{{[^{{}}]*\}}) ?{_ARGUMENT}", r"\\frac\1{\2}"),
        (rf"\\sqrt ?{_ARGUMENT}", r"\\sqrt{\1}"),
        (r"([_^]) ?\{ ?([0-9A-Za-z]) ?\}", r"\1\2"),
        (r"\\log ?_ ?([0-9])", r"\\log_{\1}"),
        (r"\*\*", "^"),
        (r"\*", r"\\cdot "),
    )
)
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!) ?(?=[0-9]{3})")
# A space stays between digits ("3 3" is not 33), after a command that a letter follows, and in \text{...}.
_LOOSE_SPACE = re.compile(r"(\\text\{[^{}]*\}|\\[A-Za-z]+ (?=[A-Za-z])|[0-9] (?=[0-9]))| ")
_WRAPPER = re.compile(r"\\(?:text|boxed|fbox) ?\{([^{}]*)\}\Z|\{([^{}]*)\}\Z|\\[(\[](.*)\\[)\]]\Z", re.DOTALL)
_WORDS = re.compile(r"\\text ?\{ ?([(]?[A-Za-z][A-Za-z()., '-]*)\}\Z")

_INTEGER = re.compile(r"([+-]?) ?([0-9]+|[0-9]{1,3}(?:[, ][0-9]{3})+)(?:\.0*)?\Z")
_FRACTION = re.compile(
    r"([+-]?)(?:(?P<whole>[0-9]+) ?)?"
    r"(?:\\frac\{(?P<p>-?[0-9]+)\}\{(?P<q>-?[0-9]+)\}|(?<![0-9])(?P<n>[0-9]+)/(?P<d>[0-9]+))\Z"
)
_DECIMAL = re.compile(
    r"([+-]?)(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.(?P<digits>[0-9]*)(?:\\(?:overline|bar)\{?(?P<repeat>[0-9]+)\}?)?)?\Z"
)

# Names of units that may stand after a value without \text, in the singular; the value is the name to compare.
_UNITS = {
    "mm": "mm", "cm": "cm", "km": "km", "kg": "kg", "meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm",
    "kilometer": "km", "kilometre": "km", "millimeter": "mm", "millimetre": "mm", "in": "inch", "inche": "inch",
    "inch": "inch", "ft": "foot", "foot": "foot", "feet": "foot", "mi": "mile", "mile": "mile", "yd": "yard",
    "yard": "yard", "sec": "s", "second": "s", "min": "minute", "minute": "minute", "hr": "h", "hour": "h",
    "day": "day", "week": "week", "month": "month", "year": "year", "gram": "g", "kilogram": "kg", "liter": "l",
    "litre": "l", "deg": "°", "degree": "°", "percent": "%", "dollar": "$", "cent": "cent", "rad": "radian",
    "radian": "radian", "unit": "", "point": "point", "way": "way", "people": "people",
}  # fmt: skip
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
# The search is bounded: no unit is longer.
_TAIL_CHARS = 80
_UNIT = re.compile(
    r"(?:(?P<sign>[°%])|\\text ?\{(?P<text>[^{}]*)\}"
    r"|(?<![A-Za-z\\])(?P<bare>(?:(?:square|sq\.?|cubic|cu\.?) ?)?[A-Za-z]{2,})\.?)"
    r"(?: ?\^ ?(?P<power>[23]))?\Z"
)
_UNIT_WORDS = re.compile(r"(?:(square|sq|cubic|cu)\.? ?)?([A-Za-z][A-Za-z ./-]*)\Z")
# Words after a number that say another number, or more than what it counts.
_NO_UNIT = re.compile(
    r"\b(?:or|and|not|no|more|less|fewer|than|over|under|least|most|about|if|mod|base|dozens?|hundreds?|thousands?|"
    r"millions?|billions?|half|halves|thirds?|tenths?|pi|sqrt|to|for|where|when|unless|except|is|are|only)\b"
)
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")


def spell(answer: str) -> str:
    """One spelling, with single spaces: without `$`, sizing commands and explicit thousands separators."""
    text = answer[: MAX_ANSWER_CHARS + 1].translate(_CHARACTERS).replace("\\%", "%")
    text = text.replace("\\$", "\0").replace("$", "").replace("\0", "\\$")
    text = _THOUSANDS.sub("", text).replace("{,}", ",").replace("\\!", "")
    text = _COMMAND.sub(lambda found: _COMMANDS.get(found[1], found[0]) if found[1] else " ", text)
    text = _BARE_NAME.sub(lambda found: f"\\{found[1] or 'infty'} ", text)
    text = " ".join(text.split())
    for pattern, full in _SHORT_FORMS:
        text = pattern.sub(full, text)
    for _ in range(3):
        text = text.strip(" ").rstrip(" .,;:\\")
        wrapped = _WRAPPER.match(text)
        if not wrapped or _WORDS.match(text):
            break
        text = wrapped[1] or wrapped[2] or wrapped[3] or ""
    return text.strip()


def squeeze(text: str) -> str:
    """A spelled text without the spaces that mean nothing."""
    return _LOOSE_SPACE.sub(lambda found: found[1] or "", text)


def words(text: str) -> str | None:
    r"""The words of a spelled `\text{...}` as they are compared, None for anything else."""
    found = _WORDS.match(text)
    if not found:
        return None
    plain = " ".join(found[1].strip("()., ").split())
    return plain if len(plain) == 1 else plain.lower()


def split_unit(text: str) -> tuple[str, str]:
    r"""(value, unit) of a spelled text; the unit is "" where there is none, and for `\text{ units}`.

    A unit of the table may follow any value, other words in `\text{...}` only a number that counts them.
    """
    dollars = re.match(r"(-?) ?\\\$ ?", text)
    if dollars:
        return dollars[1] + text[dollars.end() :], "$"
    found = _UNIT.search(text, max(0, len(text) - _TAIL_CHARS))
    if not found or not found.start():
        return text, ""
    value = text[: found.start()].rstrip()
    if found["sign"]:
        angle = found["sign"] == "°" and _ANGLE_FUNCTION.search(value)
        return (text, "") if angle else (value, found["sign"])
    name = _unit_name((found["text"] or found["bare"]).strip().lower(), found["text"] is not None, value)
    if name is None:
        return text, ""
    power = f"^{found['power']}" if found["power"] and name else ""
    return value, name + power


def _unit_name(phrase: str, is_text: bool, value: str) -> str | None:
    parts = _UNIT_WORDS.match(phrase)
    if not parts or not value:
        return None
    name = parts[2].strip(" .")
    known = _UNITS.get(name) if name in _UNITS else _UNITS.get(name.removesuffix("s"))
    if known is None and is_text:
        if name in ("m", "s", "g", "h", "l"):
            known = name
        elif len(name) > 1 and rational(squeeze(value)) is not None and not _NO_UNIT.search(name):
            known = name.removesuffix("s")
    return known + _POWERS.get(parts[1], "") if known else known


def integer(value: str) -> str | None:
    """The canonical digits of an integer literal (no padding, no separators, no `.0`), None for anything else."""
    found = _INTEGER.match(value)
    if not found:
        return None
    digits = found[2].replace(",", "").replace(" ", "").lstrip("0") or "0"
    return "-" + digits if found[1] == "-" and digits != "0" else digits


def rational(value: str) -> Fraction | None:
    r"""The number that a squeezed literal says: `3/4`, `-\frac{3}{4}`, `1\frac{1}{2}`, `0.25`, `0.1\overline{6}`."""
    if digits := integer(value):
        return Fraction(int(digits))
    if found := _FRACTION.match(value):
        p, q = int(found["p"] or found["n"]), int(found["q"] or found["d"])
        if not q or (found["whole"] is not None and not 0 < p < q):
            return None
        number = int(found["whole"] or 0) + Fraction(p, q)
    elif (found := _DECIMAL.match(value)) and (found["whole"] or found["digits"] or found["repeat"]):
        digits, repeat = found["digits"] or "", found["repeat"]
        number = Fraction(int(found["whole"].replace(",", "") + digits or 0), 10 ** len(digits))
        if repeat:
            number += Fraction(int(repeat), (10 ** len(repeat) - 1) * 10 ** len(digits))
    else:
        return None
    return -number if found[1] == "-" else number


def canonical(answer: str) -> str:
    r"""One spelling for equal integers: "033", "33.0", "33 cm" and "33^\circ" all give "33"; other answers spelled."""
    if digits := integer(answer.strip()[:MAX_ANSWER_CHARS]):  # most answers, at a tenth of the time
        return digits
    text = spell(answer)
    value, _ = split_unit(text)
    return integer(value) or squeeze(text)
