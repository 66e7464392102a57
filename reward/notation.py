r"""One spelling for answers that differ only in how they are written, and what numbers and units say.

Answers are in LaTeX, as competition problems, the MATH data set and models write them.
"""

import functools
import re
import unicodedata
from fractions import Fraction
from typing import Any

MAX_ANSWER_CHARS = 1000  # longer answers are essays

_CHARACTERS = str.maketrans(
    {
        "\u200b": "", "\ufeff": "", "\u2044": "/", "\u2212": "-", "\u2010": "-", "\u2013": "-", "\u00d7": "\\cdot ",
        "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty ", "√": "\\sqrt ", "±": "\\pm ", "≤": "\\le ", "≥": "\\ge ",
        "≠": "\\ne ", "\u222a": "\\cup ", "∈": "\\in ",
    }
)  # fmt: skip
_SMALL = re.compile(r"([⁰¹²³⁴-⁹⁻ⁿ]+)|([₀-₉]+)|[¼-¾⅐-⅞]")
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_TOKEN = r"(?:[0-9A-Za-z]|\\pi(?![a-z]))"

_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine")


def _repeating(match: re.Match[str]) -> str:
    value = int("".join(match.groups())) - int(match[1] + match[2])
    return f"\\frac{{{value}}}{{{'9' * len(match[3])}{'0' * len(match[2])}}}"


_SPELLINGS: list[tuple[str, Any]] = [  # in this order; "\\cr " ends a row, and "°" is a degree sign
    (r"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|left|right|pi|text|infty|le)(?![A-Za-z]))", r"\\"),
    (r"\\\\", r"\\cr "),
    (r"(?<=\d)(?:\{,\}|,\\! ?|\\[, ])(?=\d{3})", ","),
    (r"\\(?:!|(?:left|right|[bB]igg?[lr]?|displaystyle|mathbf|boldsymbol|bf|rm)(?![A-Za-z]))", ""),
    (r"\\(?:begin|end) ?\{(?:aligned|align\*?|gathered|split|equation\*?)\}", ""),
    (r"(?<=[\w)])\*\*(?=[\w(])", "^"),
    (r"(?<!\\)\$|\\[()\[\],;: ]|\*\*|`|\\q?quad(?![A-Za-z])|[\s~]", " "),
    (r" +", " "),
    (r"\\(?:mbox|text(?:rm|bf|it|normal)|mathrm|operatorname) ?(?=\{)", r"\\text"),
    (r"\A\\text ?\{ ?\([A-Z]\) ?\} *(?=[^ ])|\\text ?\{ ?\}", ""),
    (r"\\text ?\{ ?(e|i|\\pi|[A-Z](?:, ?[A-Z])+) ?\}", r" \1 "),
    (r"(?<![\d}])(?<![\d}] )\\text ?\{ ?\(?([A-Za-z]|-?\d[\d.,]*)\)? ?\}", r" \1 "),
    (rf"_\{{(?:\\text ?\{{)?({'|'.join(_BASES)})\}}+", lambda match: f"_{{{_BASES.index(match[1]) + 2}}}"),
    (r"\{array\}(?: ?\{[^{}]*\})?", "{matrix}"),
    (r"\\([lg]e|ne)q(?![A-Za-z])", r"\\\1"),
    (r"([<>!])=", lambda match: {"<": "\\le ", ">": "\\ge ", "!": "\\ne "}[match[1]]),
    (r"\\times(?![A-Za-z])|\*", r"\\cdot "),
    (r"\\%", "%"),
    (r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))|\\degree", "°"),
    (r"\\(?:emptyset|varnothing)", r"\{\}"),
    (r"(?<![A-Za-z\\])(sqrt|pi|sin|cos|tan|log|ln)(?![A-Za-z])", r"\\\1 "),
    # Arguments get their braces: \frac12, \sqrt2, sqrt(2), x^10, x^(n+1).
    (r"(\\sqrt|\^) ?\(([^()]*)\)", r"\1{\2}"),
    (r"\\[dtc]frac", r"\\frac"),
    (rf"\\(frac|binom) ?({_TOKEN})", r"\\\1{\2}"),
    (rf"\\(frac|binom) ?({_GROUP}) ?({_TOKEN})", r"\\\1\2{\3}"),
    (rf"\\sqrt ?(\[\d+\])? ?(\d+|{_TOKEN})", r"\\sqrt\1{\2}"),
    (rf"([\^_]) ?(-? ?\d+|-?{_TOKEN}|\\[A-Za-z]+(?:{_GROUP})*)", r"\1{\2}"),
    (r"\{([^{}]*)\\over(?![a-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\\mathbb ?\{?R\}?", r"(-\\infty,\\infty)"),
    (r"(\d+)\.(\d*)\\overline ?\{(\d+)\}", _repeating),
    (r"(?<![\d.])\.(?=\d)", "0."),
    (r"(?<=\S) ?\\(?:approx|simeq|sim)(?![A-Za-z]).*", ""),
    (rf"\A *(?={_GROUP} *\Z)\{{(.*)\}} *\Z", r"\1"),
    (r"(?<=\d)_\{10\}\Z", ""),
]
_RULES = [(re.compile(pattern), full) for pattern, full in _SPELLINGS]
_THOUSANDS = re.compile(r"\A-?[1-9]\d{0,2}(?: \d{3})+\Z|(?<![\d,.])(?!0)\d{1,3}(?:,\d{3})+(?![\d,]\d|,\d)")
_BLANK = re.compile(r"(\\text ?\{[^{}]*\}|\\[A-Za-z]+ (?=[A-Za-z])|\d (?=\d))| ")
_RATIONAL = re.compile(r"([+-]?) ?(?:(\d+(?:\.\d*)?)|(?:(\d+) +)?(-?\d+) ?/ ?(\d+))")
# Words after a value that change it; up to four other words are its unit.
_NO_UNIT = re.compile(
    r"\b(?:or|and|not|no|more|less|fewer|than|over|under|least|most|about|approximately|if|mod|base|plus|minus|times|of"
    r"|choose|double|twice|point|factorials?|dozens?|scores?|gross|squared|cubed|negative|inverse|reciprocals?|half|halves"
    r"|thirds|quarters|tens|hundreds?|thousands?|[a-z]*illions?|(?!path|month|length)[a-z]+ths?|is|are|to|for|when)\b"
)
_UNIT = re.compile(
    r" ?(?P<words>%|°(?: ?(?:\\text\{)?[CF]\}?)?|\\text ?\{[A-Za-z. /]*\}|(?<=\d)[ck]m"
    r"|(?<=\d )(?:[a-z]{4,}|[cmk]m|kg|ft|in|mi|mph|min|sec|pct|hrs?|days?|ways?)(?: [a-z]+){0,3})"
    r"(?:\^\{(?P<power>[23])\})?\Z"
)


@functools.lru_cache(1024)
def spell(text: str) -> str:
    """One spelling, with single spaces: without `$`, fonts, sizing commands, and thousands separators."""
    text = text[: MAX_ANSWER_CHARS + 1]
    if not text.isascii():
        text = text.translate(_CHARACTERS)
        text = _SMALL.sub(lambda m: f"^{{{m[0]}}}" if m[1] else f"_{{{m[0]}}}" if m[2] else f" {m[0]}", text)
        text = unicodedata.normalize("NFKC", text).translate(_CHARACTERS)
    for pattern, full in _RULES:
        text = pattern.sub(full, text)
    text = (text if "\\begin" in text else text.replace("&", "")).strip(" .,;:")
    if not re.search(r"[(\[]|\\\{", text):
        text = _THOUSANDS.sub(lambda match: re.sub("[, ]", "", match[0]), text)
    return text


def squeeze(text: str) -> str:
    """A spelled text without the spaces that mean nothing: "3 3" is not 33."""
    return _BLANK.sub(lambda match: match[1] or "", text)


def rational(text: str) -> Fraction | None:
    r"""The number that a spelled literal says: `-033`, `3/4`, `1\frac{1}{2}`, `0.25`."""
    match = _RATIONAL.fullmatch(re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r" \1/\2", text).strip())
    if not match:
        return None
    sign, decimal, whole, p, q = match.groups()
    if q and (not int(q) or (whole and not 0 < int(p) < int(q))):
        return None
    value = Fraction(decimal.rstrip(".")) if decimal else int(whole or 0) + Fraction(int(p), int(q))
    return -value if sign == "-" else value


def split_unit(text: str) -> tuple[str, str]:
    r"""(value, unit) of a spelled text; the unit is "" if there is none, and for `\text{ units}`."""
    if currency := re.match(r"(-?) ?\\\$ ?(?=.)", text):
        return currency[1] + text[currency.end() :], "dollars"
    match = _UNIT.search(text)
    if not match or not match.start():
        return text, ""
    value, words = text[: match.start()].rstrip(), re.sub(r"\\text|[{}.]", "", match["words"]).strip().lower()
    is_angle = words[:1] in ("%", "°") and re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text)
    if is_angle or _NO_UNIT.search(words) or re.fullmatch("[a-z]{3,}", value):
        return text, ""
    if words in ("unit", "units"):
        return split_unit(value)
    power = match["power"] or ("2" if words.startswith("sq") else "3" if words.startswith("cu") else "")
    words = re.sub(r"^(?:sq(?:uare)?|cu(?:bic)?)\b", "", words)
    for short, full in (("%", "percent"), ("°", "degrees"), ("/", "per"), (" ", "")):
        words = words.replace(short, full)
    return value, words + power
