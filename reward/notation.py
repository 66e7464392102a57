r"""One spelling for short LaTeX answers that differ only in how they are written.

String work in linear time; nothing is evaluated. Fonts, colors, sizes, invisible characters and the width of digits
mean nothing and are dropped. A percent sign, a degree sign, a currency sign and words such as `\text{ cm}` are units
(`units`). If a gold answer of MATH ends in `\%`, the question asks for a percentage, so `50\%` is 50 and not 0.5.
"""

import functools
import re
import unicodedata

from reward.arguments import brace

# Longer answers are essays; nothing here reads further.
MAX_ANSWER_CHARS = 1000

_CHARACTERS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u00d7": "\\times ", "·": "\\cdot ", "÷": "/",
        "∞": "\\infty ", "π": "\\pi ", "θ": "\\theta ", "\u211d": "\\mathbb{R}", "\u2124": "\\mathbb{Z}",
        "√": "\\sqrt ", "±": "\\pm ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "\u222a": "\\cup ", "∈": "\\in ",
        "∅": "\\emptyset ", "\u2032": "'", "\u2019": "'", "…": "\\dots ", "∠": "\\angle ", "■": "", "□": "",
        "\u2216": "\\setminus ",
    }
)  # fmt: skip
_SMALL_DIGITS = re.compile(r"(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+)|(?P<lowered>[₀-₉]+)|(?P<fraction>[¼-¾⅐-⅞])")
_COMMANDS = {
    **dict.fromkeys(("left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "middle"), ""),
    **dict.fromkeys(("displaystyle", "textstyle", "limits", "nolimits"), ""),
    **dict.fromkeys(("mathbf", "boldsymbol", "bm", "pmb", "mathsf", "mathtt", "mathnormal", "underline"), ""),
    **dict.fromkeys(("bf", "rm", "it", "bfseries", "itshape", "tiny", "small", "normalsize", "large", "Large"), ""),
    **dict.fromkeys(("LARGE", "huge", "Huge", "blacksquare", "square", "Box", "qed", "checkmark"), ""),
    **dict.fromkeys(("thinspace", "enspace"), " "),
    "qquad": "\\quad",
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "\\binom"),
    **dict.fromkeys(("leq", "leqslant"), "\\le"),
    **dict.fromkeys(("geq", "geqslant"), "\\ge"),
    **dict.fromkeys(("times", "ast"), "\\cdot"),
    **dict.fromkeys(("ldots", "cdots", "dotsc", "dotsb"), "\\dots"),
    **dict.fromkeys(("textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "emph"), "\\text"),
    **dict.fromkeys(("mathrm", "mathit", "mbox"), "\\text"),
    **dict.fromkeys(("backslash", "smallsetminus"), "\\setminus"),
    "neq": "\\ne", "lt": "<", "gt": ">", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]",
    "varnothing": "\\emptyset", "degree": "°", "textdegree": "°", "R": "\\mathbb{R}",
}  # fmt: skip
# A command after a doubled backslash, as in JSON: a row of a matrix begins with a blank or a third backslash.
_DOUBLED = re.compile(
    r"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|left|right|pi|text|mathrm|leq?|geq?|infty|cdot|times|cup|circ|pm)(?![A-Za-z]))"
)
_COMMAND = re.compile(r"\\(?:([A-Za-z]+)|(?<!\\\\)[,;:> ])")  # "\\ " ends a row of a matrix
# Commands that go with their argument: colors and spaces, also that of a row.
_ORNAMENT = re.compile(
    r"(?<=\\\\)\[-?[0-9.]+ ?(?:pt|em|ex|mm)\]"
    r"|\\(?:(?:text|f)?color(?:box)?|[hv]space\*?|h?phantom) ?\{[^{}]*\}"
)
# TeX's own fractions and binomials, in a group or alone; their parts hold one level of groups.
_HALF = r"((?:[^{}]|\{[^{}]*\})*?)"
_OVER = re.compile(rf"(?:\{{|\A){_HALF}\\(over|choose)(?![A-Za-z]){_HALF}(?:\}}|\Z)")
# A group means nothing unless it is the argument of a command.
_GROUP = re.compile(r"\\[A-Za-z]+ ?\{|\\.|[_^}\]] ?\{|\{([^{}]*)\}")
_FUNCTION = "arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|ln|log"
# A function's name in an upright font. Without an argument, \text{sec} is a unit.
_UPRIGHT_NAME = re.compile(rf"\\operatorname ?\{{ ?\\?({_FUNCTION}) ?\}}|\\text ?\{{ ?({_FUNCTION}) ?\}}(?= ?[(^_])")
# Names that plain text writes without a backslash.
_BARE_NAME = re.compile(
    rf"(?<![A-Za-z\\])(?<!\\text\{{)(?<!\\text\{{ )(?:(sqrt|pi|theta|{_FUNCTION})|infinity|inf|oo)(?![A-Za-z])"
)
# Python's sign of a power, which is Markdown's for bold text elsewhere.
_POWER = re.compile(r"(?<=[0-9A-Za-z)}])\*\*(?=[0-9A-Za-z(\\{+-])")
_SHORT_FORMS = tuple(
    (re.compile(pattern), full)
    for pattern, full in (
        # a number or a constant in an upright font
        (r"\\(?:text|operatorname) ?\{ ?(-?[0-9][0-9,.]*(?<![,.])|[ei]|\\pi) ?\}", r" \1 "),
        (r"\\(sin|cos|tan) ?\^ ?\{ ?-1 ?\}", r"\\arc\1 "),
        (r"\\text ?\{([^{}]*)\} ?/ ?\\text ?\{([^{}]*)\}", r"\\text{\1/\2}"),
        (r"\\text ?\{ ?([0-9A-Z]+) ?\}(?=_)", r"\1"),
        (r"(\^\{[^{}]*\})(_\{[^{}]*\})", r"\2\1"),
        (r"\\lg(?![A-Za-z])(?=_)", r"\\log"),
        (r"\\lg(?![A-Za-z]) ?", r"\\log_{10}"),
        (r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))", "°"),
        (r"\*", r"\\cdot "),
        (r"(\\mathbb ?\{[A-Z]\}) ?- ?(?=\\\{)", r"\1\\setminus "),
    )
)
_THOUSANDS = re.compile(r"(?<![0-9])(?!0+[{,])[0-9]{1,3}(?:(?:\{,\}|,\\! ?)[0-9]{3})+(?![0-9])")
# Two formulas beside each other are two values, whatever separates them: `$1$,$204$` is not 1204.
_DELIMITER = r"(?:(?<!\\)\$|(?<!\\)\\[()]|\*\*|`)"
_GAP = r"(?:\s|~|\\[,;:! ])*"
_BESIDE = re.compile(
    rf"(?<=[0-9])(?:{_DELIMITER}+{_GAP},{_GAP}{_DELIMITER}*|{_GAP},{_GAP}{_DELIMITER}+|{_DELIMITER}+{_GAP}{_DELIMITER}+)"
    r"(?=[0-9])"
)
# A comma with a blank beside it separates the elements of a list: no blank is lost there.
_LIST_COMMA = re.compile(r"(?<=[0-9])(?: , ?| ?, )(?=[0-9])")
# A wide blank separates statements, but not words from the expression beside them.
_WIDE_BLANK = re.compile(r"(?:\A|(?<=[,;])|(\\text ?\{[^{}]*\})) ?(?:\\quad ?)+|(?:\\quad ?)+(?=\\text ?\{|[ ,;.]*\Z)")
_SEPARATOR = re.compile(r"[^0-9]")
# A space stays between digits ("3 3" is not 33), after a comma there ("3, 300" is not 3300), after a command that a
# letter follows, and in \text{...}.
_LOOSE_SPACE = re.compile(r"(\\text\{[^{}]*\}|\\[A-Za-z]+ (?=[A-Za-z])|[0-9],? (?=[0-9]))| ")
_WRAPPER = re.compile(
    r"\\(?:text|boxed|fbox) ?\{([^{}]*)\}\Z|\{(\\text ?\{[^{}]*\})\}\Z|\\[(\[](.*)\\[)\]]\Z|\*\*(.*)\*\*\Z", re.DOTALL
)
_WORDS = re.compile(r"\\text ?\{ ?([(]?[A-Za-z][A-Za-z()., '-]*)\}\Z")
_EMPTY = re.compile(r"\\text ?\{ *\}")
# What needs no \\text, in the singular or the plural: "no real solutions".
_NONE = re.compile(r"(?:there (?:is|are) )?(no [a-z ]{3,}?)s?\Z", re.IGNORECASE)
_LABEL = re.compile(
    r"(\\text ?\{ ?)?(?:the )?(?:final |correct )?answer(?![A-Za-z])(?: is)? ?:? ?(?(1)\} ?)(?=[^ ])", re.IGNORECASE
)
# The letter of a choice before its content.
_CHOICE = re.compile(r"\\text ?\{ ?\([A-E]\)[ .:]*\}[ .:]*(?=[^ ])")


@functools.lru_cache(maxsize=64)  # one grade may ask for a text more than once
def spell(answer: str) -> str:
    """One spelling, with single spaces: without `$`, sizing commands and explicit thousands separators."""
    text = answer[: MAX_ANSWER_CHARS + 1]
    if not text.isascii():
        text = _convert_to_ascii(text)
    text = separate_formulas(text).replace("~", " ").replace("\\%", "%")
    text = text.replace("\\$", "\0").replace("$", "").replace("\0", "\\$")
    text = _THOUSANDS.sub(lambda match: _SEPARATOR.sub("", match[0]), text).replace("{,}", ",").replace("\\!", "")
    if "\\" in text:
        text = _ORNAMENT.sub("", _DOUBLED.sub(r"\\", text))
        text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1], match[0]) if match[1] else " ", text)
        text = _UPRIGHT_NAME.sub(lambda match: f"\\{match[1] or match[2]} ", text)
        if "\\over" in text or "\\choose" in text:
            text = _OVER.sub(_fraction, text)
    text = _BARE_NAME.sub(lambda match: f"\\{match[1] or 'infty'} ", text)
    if "**" in text:
        text = _POWER.sub("^", text)
    text = brace(" ".join(_EMPTY.sub(" ", text).split()))
    if "," in text:
        text = _LIST_COMMA.sub(", ", text)
    if "\\quad" in text:
        text = _WIDE_BLANK.sub(lambda match: f"{match[1] or ''} ", text)
    braced, text = text, _unwrap(text)
    if text != braced and "\\text" in braced:  # formulas inside \text{...} come to light here
        text = brace(text)
    for pattern, full in _SHORT_FORMS:
        text = pattern.sub(full, text)
    return _unwrap(text)


def separate_formulas(text: str) -> str:
    """The text with a list's comma between the numbers of two formulas that stand beside each other."""
    return _BESIDE.sub(", ", text)


def _convert_to_ascii(text: str) -> str:
    """Characters that ASCII has a spelling for; compatible forms (full width, bold) plain, invisible ones gone."""
    text = _SMALL_DIGITS.sub(_full_size, text.translate(_CHARACTERS))
    text = unicodedata.normalize("NFKC", text).translate(_CHARACTERS)
    return "".join(character for character in text if unicodedata.category(character) != "Cf")


def _full_size(match: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", match[0])
    if match["fraction"]:
        return "\\frac{{{}}}{{{}}}".format(*digits.split("\u2044"))
    return f"{'^' if match['raised'] else '_'}{{{digits}}}"


def _fraction(match: re.Match[str]) -> str:
    return f"\\{'frac' if match[2] == 'over' else 'binom'}{{{match[1]}}}{{{match[3]}}}"


def _unwrap(text: str) -> str:
    """Without enclosing delimiters, groups that mean nothing, and the punctuation of a sentence."""
    for _ in range(3):
        if "{" in text:
            text = _GROUP.sub(lambda match: match[0] if match[1] is None else match[1], text)
        text = text.strip(" ").rstrip(" .,;:\\")
        wrapped = _WRAPPER.match(text)
        if not wrapped or _WORDS.match(text):
            break
        text = next((inner for inner in wrapped.groups() if inner is not None), "")
    text = text.strip()
    if "nswer" in text and (label := _LABEL.match(text)):
        return text[label.end() :]
    return _CHOICE.sub("", text, count=1) if text.startswith("\\text") else text


def squeeze(text: str) -> str:
    """A spelled text without the spaces that mean nothing."""
    return _LOOSE_SPACE.sub(lambda match: match[1] or "", text)


def words(text: str) -> str | None:
    r"""The words of a spelled `\text{...}`, or "no" with words, as they are compared; None for anything else."""
    match = _WORDS.match(text)
    plain = " ".join(match[1].strip("()., ").split()) if match else text
    if none := _NONE.match(plain):
        return none[1].lower()
    return None if not match else plain if len(plain) == 1 else plain.lower()
