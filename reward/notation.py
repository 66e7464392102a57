r"""One spelling for answers that differ only in how they are written, and what numbers and units say.

Answers are in LaTeX, as competition problems, the MATH data set and models write them.
"""

import functools
import re
import unicodedata
from fractions import Fraction

MAX_ANSWER_CHARS = 1000  # longer answers are essays

_CHARACTERS = str.maketrans(
    {
        "\u200b": "", "\ufeff": "", "\u202f": "\\,", "\u2009": "\\,", "\u2044": "/", "\u2212": "-", "\u2010": "-",
        "\u2013": "-", "\u00d7": "\\cdot ", "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty ", "√": "\\sqrt ", "±": "\\pm ",
        "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "\u222a": "\\cup ", "∈": "\\in ",
    }
)  # fmt: skip
_SMALL = re.compile(r"(?P<raised>[⁰¹²³⁴-⁹⁻ⁿ]+)|(?P<lowered>[₀-₉]+)|[¼-¾⅐-⅞]")
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_TOKEN = r"(?:[0-9A-Za-z]|\\pi(?![a-z]))"


def _repeating(match: re.Match[str]) -> str:
    value = int("".join(match.groups())) - int(match[1] + match[2])
    return f"\\frac{{{value}}}{{{'9' * len(match[3])}{'0' * len(match[2])}}}"


# In this order. "\\cr " ends a row, and "°" is a degree sign. Arguments get their braces: `\frac12`, `x^10`, `\sqrt2`.
_RULES = tuple(
    (re.compile(pattern), full)
    for pattern, full in (
        (r"\s+|~", " "), (r"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|left|right|pi|text|infty|le)(?![A-Za-z]))", r"\\"),
        (r"\\\\", r"\\cr "), (r"(?<=\d)(?:\{,\}|,\\! ?|\\[, ])(?=\d{3})", ","),
        (r"\\(?:!|(?:left|right|[bB]igg?[lr]?|displaystyle|mathbf|boldsymbol|underline|large|bf|rm)(?![A-Za-z]))", ""),
        (r"(?<=[\w)])\*\*(?=[\w(])", "^"), (r"(?<!\\)\$[\s,]*(?<!\\)\$", ", "), (r"(?<!\\)\$|\\[()\[\]]|\*\*|`", " "),
        (r"\\(?:mbox|text(?:rm|bf|it|normal)|mathrm|operatorname) ?(?=\{)", r"\\text"), (r"\\[dtc]frac", r"\\frac"),
        (r"\{array\}(?: ?\{[^{}]*\})?", "{matrix}"), (r"\\text ?\{ ?([ei]|\\pi) ?\}", r" \1 "),
        (r"\\(?:begin|end) ?\{(?:aligned|align\*?|gathered|split|equation\*?)\}", ""),
        (r"\\(?:emptyset|varnothing)", r"\{\}"),
        (r"\\[,;: ]", " "), (r" *\\q?quad(?![A-Za-z])(?! *\\text) *", ", "), (r"\\quad| +", " "),
        (r"\\([lg]e|ne)q(?![A-Za-z])", r"\\\1"), (r"<=", r"\\le "), (r">=", r"\\ge "), (r"!=", r"\\ne "),
        (r"\\times(?![A-Za-z])|\*", r"\\cdot "), (r"\\%", "%"),
        (r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))|\\degree", "°"),
        (r"\A\\text ?\{ ?\([A-Z]\) ?\} *(?=[^ ])|\\text ?\{ ?\}", ""), (r"\\text ?\{ ?([A-Z](?:, ?[A-Z])+) ?\}", r"\1"),
        (r"(?<![\d}])(?<![\d}] )\\text ?\{ ?\(?([A-Za-z]|-?\d[\d.,]*)\)? ?\}", r" \1 "),
        (r"\A *(?:\\text ?\{ ?)?(?:[Tt]he )?(?:[Ff]inal )?[Aa]nswer(?: is)?:? ?\}? *(?=[^ }])", ""),
        (r"(?<![A-Za-z\\])(sqrt|pi|sin|cos|tan|log|ln)(?![A-Za-z])", r"\\\1 "),
        (rf"\\(frac|binom) ?({_TOKEN})", r"\\\1{\2}"), (rf"\\(frac|binom) ?({_GROUP}) ?({_TOKEN})", r"\\\1\2{\3}"),
        (r"\\sqrt ?\(([^()]*)\)", r"\\sqrt{\1}"), (rf"\\sqrt ?(\[\d+\])? ?(\d+|{_TOKEN})", r"\\sqrt\1{\2}"),
        (r"\^ ?\(([^()]*)\)", r"^{\1}"), (r"([\^_]) (?=\{)", r"\1"),
        (rf"([\^_]) ?(-? ?\d+|-?{_TOKEN}|\\[A-Za-z]+(?:{_GROUP})*)", r"\1{\2}"),
        (r"\{([^{}]*)\\over(?![a-z])([^{}]*)\}", r"\\frac{\1}{\2}"), (r"\\mathbb ?\{?R\}?", r"(-\\infty,\\infty)"),
        (r"(\d+)\.(\d*)\\overline ?\{(\d+)\}", _repeating), (r"(?<![\d.])\.(?=\d)", "0."),
        (r"(?<=\S) ?\\(?:approx|simeq|sim)(?![A-Za-z]).*", ""),
        (rf"\A *(?={_GROUP} *\Z)\{{(.*)\}} *\Z", r"\1"), (r"(?<=\d)_\{(?:10|\\text\{ten\})\}\Z", ""),
    )
)  # fmt: skip
_THOUSANDS = re.compile(r"\A-?[1-9]\d{0,2}(?: \d{3})+\Z|(?<![\d,.])(?!0)\d{1,3}(?:,\d{3})+(?![\d,]\d|,\d)")
_BLANK = re.compile(r"(\\text ?\{[^{}]*\}|\\[A-Za-z]+ (?=[A-Za-z])|\d (?=\d))| ")
_RATIONAL = re.compile(
    r"([+-]?) ?(?:(?P<decimal>\d+\.?\d*)"
    r"|(?:(?P<whole>\d+) ?)?(?:\\frac\{(?P<p>-?\d+)\}\{(?P<q>\d+)\}|(?<!\d)(?P<n>\d+) ?/ ?(?P<d>\d+)))\Z"
)
# Words after a value that change it; up to four other words are its unit.
_NO_UNIT = re.compile(
    r"\b(?:or|and|not|no|more|less|fewer|than|over|under|least|most|about|approximately|if|mod|base|plus|minus|times|of"
    r"|choose|double|twice|point|factorials?|dozens?|scores?|gross|squared|cubed|negative|inverse|reciprocals?|half|halves"
    r"|thirds|quarters|tens|hundreds?|thousands?|[a-z]*illions?|(?!path|month|length)[a-z]+ths?|is|are|to|for|when)\b"
)
_UNIT = re.compile(
    r" ?(?:(?P<sign>%|°(?: ?(?:\\text\{)?[CF]\}?)?)|\\text ?\{(?P<text>[A-Za-z. /]*)\}|(?<=\d)(?P<close>[ck]m)"
    r"|(?<=\d )(?P<bare>(?:[a-z]{4,}|[cmk]m|kg|ft|in|mi|mph|min|sec|pct|hrs?|days?|ways?)(?: [a-z]+){0,3}))"
    r"(?:\^\{(?P<power>[23])\})?\Z"
)


@functools.lru_cache(1024)
def spell(text: str) -> str:
    """One spelling, with single spaces: without `$`, fonts, sizing commands, and thousands separators."""
    text = text[: MAX_ANSWER_CHARS + 1]
    if not text.isascii():
        text = _SMALL.sub(_full_size, text.translate(_CHARACTERS))
        text = unicodedata.normalize("NFKC", text).translate(_CHARACTERS)
    for pattern, full in _RULES:
        text = pattern.sub(full, text)
    text = (text if "\\begin" in text else text.replace("&", "")).strip(" .,;:")
    if not re.search(r"[(\[]|\\\{", text):
        text = _THOUSANDS.sub(lambda match: re.sub("[, ]", "", match[0]), text)
    return text


def _full_size(match: re.Match[str]) -> str:
    return f"^{{{match[0]}}}" if match["raised"] else f"_{{{match[0]}}}" if match["lowered"] else f" {match[0]}"


def squeeze(text: str) -> str:
    """A spelled text without the spaces that mean nothing: "3 3" is not 33."""
    return _BLANK.sub(lambda match: match[1] or "", text)


def rational(text: str) -> Fraction | None:
    r"""The number that a spelled literal says: `-033`, `3/4`, `1\frac{1}{2}`, `0.25`."""
    match = _RATIONAL.match(text)
    if not match:
        return None
    p, q, whole = match["p"] or match["n"] or "0", int(match["q"] or match["d"] or 1), match["whole"]
    if not q or (whole and not 0 < int(p) < q):
        return None
    value = Fraction((match["decimal"] or whole or "0").rstrip(".")) + Fraction(int(p), q)
    return -value if match[1] == "-" else value


def split_unit(text: str) -> tuple[str, str]:
    r"""(value, unit) of a spelled text; the unit is "" if there is none, and for `\text{ units}`."""
    if currency := re.match(r"(-?) ?\\\$ ?(?=.)", text):
        return currency[1] + text[currency.end() :], "dollars"
    match = _UNIT.search(text)
    if not match or not match.start() or (match["sign"] and re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text)):
        return text, ""
    words = (match["text"] or match["bare"] or match["close"] or "").strip(" .").lower()
    if _NO_UNIT.search(words):
        return text, ""
    power = match["power"] or ("2" if words.startswith("sq") else "3" if words.startswith("cu") else "")
    words = re.sub(r"^(?:sq(?:uare)?|cu(?:bic)?)\b|\.? ", "", words.replace("/", "per"))
    value = text[: match.start()].rstrip()
    if re.fullmatch("[a-z]{3,}", value):
        return text, ""
    if words in ("unit", "units"):
        return split_unit(value)
    sign = re.sub(r"[^%°CF]", "", match["sign"] or "").replace("°", "degrees").replace("%", "percent")
    return value, (words or sign) + power
