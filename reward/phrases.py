r"""Finds what a phrase such as "the answer is" announces. String work in linear time."""

import re
from itertools import islice

from reward.alternatives import MAX_CHARS, other_answers
from reward.literals import integer
from reward.notation import MAX_ANSWER_CHARS, separated
from reward.prose import is_read, value_of
from reward.quantities import is_name

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
# token. The semicolon of a formula, of `\;` and of a tuple does not end it.
_PHRASE_END = re.compile(
    r"\n|\.(?=\s|\*|\Z)|<\||</s>|,? \(?(?:where|when|if|by|after|for|unless|because|since|which)\b"
    r"|,? \(?(?:as(?! well\b)|so(?! (?:is|are|does)\b))\b|[!?](?=\s|\Z)|(?P<inner>(?<!\\);|(?<=[^\s]):(?=\s))"
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
# Words before a phrase of the same sentence which say that it announces the answer of one case, or another answer.
_ONE_CASE = re.compile(
    r"\b(?:if|when|for (?!the|this|our|that)|otherwise|unless|assuming|including|excluding|counting|another|other|"
    r"second|backup|fallback|alternative|alternate|possible|also|or|maybe|perhaps|possibly)\b[^.!?\n]*\Z",
    re.IGNORECASE,
)
MAX_LEAD_CHARS = 120
# How many phrases are looked at for one that is followed by an answer.
MAX_PHRASES = 20
_DISPLAYED = re.compile(r"\\\[|\$\$")
# What another quantity is derived with, here from an announced one.
CONCLUDING = re.compile(
    r"\b(?:so|then|thus|hence|therefore|gives?|giving|which|yields?|implies|means?|get|gets|follows?|leaves|leaving|"
    r"now|next|finally|after|becomes?|since|because|from|where|no|wait|actually|wrong|instead)\b|=>|\\(?:Right|right|im)",
    re.IGNORECASE,
)
_REMAINDER = re.compile(r"mod(?![a-z]{5})|modulo|remainder|divided by|last (?:two|three) digits", re.IGNORECASE)
# Words before a phrase which say that it announces no answer to the question.
_REJECTED = re.compile(
    r"\b(?:naive|wrong|incorrect|tempting|initial|previous|intermediate|partial|not the)\s\Z"
    r"|\b(?:for|when|if|with|at) (?:\$|\\\()? ?[A-Za-z](?:_[A-Za-z0-9])? ?= ?[0-9]{1,9} ?(?:\$|\\\))?,? "
    r"(?:then )?(?:the |our |its )?\Z",
    re.IGNORECASE,
)
_CORRECTING = re.compile(
    r"\b(?:no|wait|actually|instead|wrong|incorrect|mistaken?|sorry|correction|original)\b[^.!?\n]*\Z", re.IGNORECASE
)
_CANDIDATE_WORDS = re.compile(r"\b(?:either|both|maybe|perhaps|possibly)\b|[*`]|\\[()]|(?<!\\)\$")
_OTHER_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|leq|geq|neq|in|equiv|approx|sim|p?mod|bmod)(?![A-Za-z])|\u2248")
_BEFORE_A_BOX = re.compile(
    r"(?:(?<![^\s$,;:(*])[A-Za-z](?:_[A-Za-z0-9])?\s*=|[\s$*,;:(]|\\[\[(,;:! ]|\\q?quad|\b(?:or|and|vs)\b)*\Z"
)
_CONTRAST = re.compile(r"[,;]? (?:but|though|although|however|while|whereas|i\.e\.)(?![A-Za-z])")
_LED_BY_A_WORD = re.compile(r"(?<![\\{A-Za-z])(?!and |or )[a-z]{2,} ")
# One verb, and a subject that gives no other number.
_VERB = r"\b(?:is|are|was|equals)\b"
_SENTENCE = re.compile(
    rf"\s*(?:that )?(?:[A-Za-z]|\$[A-Za-z\\])(?:(?!{_VERB})[^=<>,;]){{0,200}}{_VERB}:?(?P<value>(?:(?!{_VERB}).)+)\Z",
    re.DOTALL,
)
_UNFINISHED = re.compile(r"(?:[=+\-/^_{&\[]|\\(?:cdot|times|text|mathrm|textbf)\{?)\Z")
_MAX_LABEL = 30


def after_phrase(text: str) -> tuple[tuple[str, ...], str | None]:
    """The answers that the last phrase announces, and another one that an earlier phrase announces, None if none does.

    No answers if the text has no such phrase, or nothing follows it.

    An earlier phrase counts if the last one only judges the answer ("is correct"). A phrase of one case or of another
    answer ("if zero counts, the answer is 205") adds to the answer of an earlier phrase.
    """
    judged: tuple[str, ...] = ()
    one_case: tuple[str, ...] = ()
    for phrase in islice(reversed(list(_PHRASE.finditer(text))), MAX_PHRASES):
        answers = _announced(text, phrase.end())
        if answers and not _PROSE.match(", ".join(answers)):
            if one_case:
                return answers if answers == one_case else answers + one_case, None
            if not _ONE_CASE.search(text, max(0, phrase.start() - MAX_LEAD_CHARS), phrase.start()):
                return answers, None if _corrects(text, phrase.start()) else _unlike(text, phrase.start(), answers[0])
            one_case = answers
        judged = judged or answers
    return one_case or judged, None


def _corrects(text: str, begin: int) -> bool:
    """Whether the words before a phrase take back what was said: "No, the answer is 204"."""
    return _CORRECTING.search(text, max(0, begin - MAX_LEAD_CHARS), begin) is not None


def _unlike(text: str, begin: int, announced: str) -> str | None:
    return earlier_answer(text, begin, announced) if _is_value(announced, announced) else None


def earlier_answer(text: str, begin: int, boxed: str) -> str | None:
    """The answer that the last phrase before `begin` announces, if the answer there is not derived from it.

    None also stands for what is no plain value ("the answer is at most 300"), and for a phrase that announces the same.

    Args:
        boxed: the answer at `begin`, of a box or of a phrase.
    """
    for phrase in islice(reversed(list(_PHRASE.finditer(text, 0, begin))), MAX_PHRASES):
        if _REJECTED.search(text, max(0, phrase.start() - MAX_LEAD_CHARS), phrase.start()):
            continue
        rest = text[phrase.end() : min(begin, phrase.end() + MAX_ANSWER_CHARS)]
        shown, end = _shown(rest)
        shown = _CONTRAST.split(shown, maxsplit=1)[0]
        if end == len(rest):
            shown = _BEFORE_A_BOX.sub("", shown)
        is_label = (
            "\n" in phrase[0] and shown.isdecimal() and int(shown) <= _MAX_LABEL and rest[end + 1 : end + 2] == " "
        )
        content = _CANDIDATE_WORDS.sub("", shown).strip(" .,;:")
        if not is_label and _is_value(content, boxed):
            between = text[phrase.end() + end : begin]
            return None if _is_derived(content, boxed, between) else content
    return None


def _is_value(content: str, boxed: str) -> bool:
    """Whether a text is a plain value, and not a name, a bound, an approximation, or prose."""
    if not content or any(sign.search(content) for sign in (_UNFINISHED, _OTHER_RELATION, _LED_BY_A_WORD)):
        return False
    if not is_read(content):
        return False
    if re.search(r"[0-9]|\\(?:pi|sqrt|frac)", value_of(content)):
        return True
    are_letters = len(content.strip("()")) == 1 == len(value_of(boxed).strip("()"))
    return are_letters and is_name(content)  # two choices, such as (A) and (B)


def _is_derived(content: str, boxed: str, between: str) -> bool:
    """Whether a box follows from an announced value: "the answer is 101/103, so $m+n = ...$"."""
    is_integer = integer(value_of(content)) is not None
    box = integer(value_of(boxed))
    if box is None or box in re.split(r"[^0-9-]+", content):  # "either 204 or 205, so ..."
        return False
    return bool(_REMAINDER.search(between)) if is_integer else bool(CONCLUDING.search(between))


def _announced(text: str, start: int) -> tuple[str, ...]:
    # One character above the limit shows that an answer is too long.
    shown, end = _shown(text[start : start + MAX_ANSWER_CHARS + 1])
    others = other_answers(shown, text[start + end : start + end + MAX_CHARS])
    shown = separated(_complement(shown))
    for delimiter in ("**", "`", "\\(", "\\)"):
        shown = shown.replace(delimiter, "")
    return (shown.strip(), *others) if shown.strip() or others else ()


def _shown(rest: str) -> tuple[str, int]:
    """The answer at the start of a text as it is written, and where it ends."""
    if displayed := _DISPLAYED.match(rest):
        closing = rest.find("\\]" if displayed[0] == "\\[" else "$$", displayed.end())
        if closing < 0:
            return rest[displayed.end() :], len(rest)
        return rest[displayed.end() : closing], closing + len(displayed[0])
    shown = _up_to_end(rest)
    return shown, len(shown)


def _complement(shown: str) -> str:
    """The value that a sentence gives to what it is about: "the largest $n$ is 34"."""
    sentence = _SENTENCE.match(shown)
    if not sentence or not re.search("[0-9]", sentence["value"]):
        return shown
    plain = _CANDIDATE_WORDS.sub("", sentence["value"]).strip()
    return sentence["value"] if is_read(plain) and not _LED_BY_A_WORD.search(plain) else shown


def _up_to_end(rest: str) -> str:
    for end in _PHRASE_END.finditer(rest):
        if not (end["inner"] and _is_inside(rest[: end.start()])):
            return rest[: end.start()]
    return rest


def _is_inside(before: str) -> bool:
    """Whether a formula or a bracket is open at the end of a text. The brackets of (1, 2] match each other."""
    dollars = before.count("$") - before.count("\\$")
    return dollars % 2 == 1 or sum(map(before.count, "([{")) > sum(map(before.count, ")]}"))
