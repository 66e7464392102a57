r"""Finds what a phrase such as "the answer is" announces. String work in linear time."""

import re
from itertools import islice

from reward.expression import is_plain
from reward.notation import MAX_ANSWER_CHARS, separate_formulas, spell, squeeze
from reward.units import split_unit

# Every quantifier is bounded, so that a search through megabytes stays linear.
_PHRASE = re.compile(
    r"\b(?:final |correct )?answers?(?: to (?:the|this) (?:problem|question))?"
    r"(?:\*{0,2}(?: is| are| was| equals| comes out to| must be| should be| =)"
    r"(?:,? (?:therefore|thus|hence|then|indeed|simply|just|clearly|also|exactly)\b,?)?(?![A-Za-z])[\s:]{0,8}"
    r"|\*{0,2}\s?:|\*{0,2}\n)[\s*:]{0,16}"
    r"|(?:\n|\A)####[ ]{0,8}",
    re.IGNORECASE,
)
# An announced answer ends with its line or sentence, before a reason, a condition or a denial, and at a model's end
# token. The semicolon of a formula, of `\;` and of a tuple does not end it. An exclamation mark ends it after a formula
# or a word; elsewhere it is a factorial, after which a sentence may begin.
_PHRASE_END = re.compile(
    r"\n|\.(?=\s|\*|\Z)|<\||</s>|,? \(?(?:where|when|if|by|after|for|unless|because|since|which)\b"
    r"|,? \(?(?:as(?! well\b)|so(?! (?:is|are|does)\b))\b|\?(?=\s|\Z)"
    r"|(?P<inner>(?<!\\);|(?<=[^\s]):(?=\s)|(?:(?<=[$*`])|(?<=\\[)\]])|(?<=[A-Za-z]{2}))!(?=\s|\Z)|(?<=!)(?=\s[A-Z]))"
    r"|,(?: but| and)? not\b| and not\b| and (?:this|it|that|the|we)\b"
    r"|,? \(?(?:attained|achieved|obtained|given|that is|i\.e\.)"
    r"|, with\b| \((?:the|see|from|using|with|counting|including|one|we)\b"
)
# A judgement of an answer is not an answer, and neither are several words without a number.
_PROSE = re.compile(
    r"(?:(?:indeed|also|in fact|now|not|definitely|therefore) )?"
    r"(?:correct|incorrect|right|wrong|verified|confirmed|valid|invalid|unique|consistent|plausible|reasonable|sound|"
    r"final)\b[^0-9\\$=]*\Z|[a-z']+(?:,? [a-z']+){3,}\Z"
)
# How many phrases are looked at for one that is followed by an answer.
MAX_PHRASES = 20
_DISPLAYED = re.compile(r"\\\[|\$\$")
_DELIMITERS = re.compile(r"[*`]|\\[()]|(?<!\\)\$")
_LED_BY_A_WORD = re.compile(r"(?<![\\{A-Za-z])(?!and |or )[a-z]{2,} ")
_LISTING = re.compile(r"(?:\\[{}]|[()\[\],; ])+")
# One verb, and a subject that gives no other number.
_VERB = r"\b(?:is|are|was|equals)\b"
_SENTENCE = re.compile(
    rf"\s*(?:that )?(?:[A-Za-z]|\$[A-Za-z\\])(?:(?!{_VERB})[^=<>,;]){{0,200}}{_VERB}:?(?P<value>(?:(?!{_VERB}).)+)\Z",
    re.DOTALL,
)


def extract_after_phrase(text: str) -> str:
    """What the last phrase announces that is followed by an answer; "" if nothing follows a phrase.

    A phrase that only judges the answer ("is correct") counts if there is no other one.
    """
    judged = ""
    for phrase in islice(reversed(list(_PHRASE.finditer(text))), MAX_PHRASES):
        # One character above the limit shows that an answer is too long.
        announced = _extract_announced(text[phrase.end() : phrase.end() + MAX_ANSWER_CHARS + 1])
        if announced and not _PROSE.match(announced):
            return announced
        judged = judged or announced
    return judged


def _extract_announced(rest: str) -> str:
    """The answer at the start of a text, without delimiters."""
    if displayed := _DISPLAYED.match(rest):
        closing = rest.find("\\]" if displayed[0] == "\\[" else "$$", displayed.end())
        shown = rest[displayed.end() : closing if closing >= 0 else len(rest)]
    else:
        shown = _up_to_end(rest)
    shown = separate_formulas(_complement(shown))
    for delimiter in ("**", "`", "\\(", "\\)"):
        shown = shown.replace(delimiter, "")
    return shown.strip()


def _complement(shown: str) -> str:
    """The value that a sentence gives to what it is about: "the largest $n$ is 34"."""
    sentence = _SENTENCE.match(shown)
    if not sentence or not re.search("[0-9]", sentence["value"]):
        return shown
    plain = _DELIMITERS.sub("", sentence["value"]).strip()
    is_value = _is_value(plain) and not _LED_BY_A_WORD.search(plain)
    return sentence["value"] if is_value else shown


def _is_value(text: str) -> bool:
    """Whether the last side of a text is plain expressions, maybe in a list, a tuple or an interval."""
    parts = _LISTING.split(squeeze(split_unit(spell(text.rpartition("=")[2]))[0]))
    return any(parts) and all(is_plain(part) for part in parts if part)


def _up_to_end(rest: str) -> str:
    for end in _PHRASE_END.finditer(rest):
        if not (end["inner"] and _is_inside(rest[: end.start()])):
            return rest[: end.start()]
    return rest


def _is_inside(before: str) -> bool:
    """Whether a formula or a bracket is open at the end of a text. The brackets of (1, 2] match each other."""
    dollars = before.count("$") - before.count("\\$")
    return dollars % 2 == 1 or sum(map(before.count, "([{")) > sum(map(before.count, ")]}"))
