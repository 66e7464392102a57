r"""Finds the answer in a message: in its last box that is not empty, or else after the last "the answer is".

Boxes with nothing but commas, "and" or "or" between them are one list. String work in linear time.
"""

import re

from reward.notation import MAX_ANSWER_CHARS, spell

NO_ANSWER = "no \\boxed and no answer phrase"
CUT_IN_BOX = "cut inside \\boxed"

_BRACE = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])\s{0,9}(?:\{|\Z|(?P<bare>-?\d[\d.]*\d|\d))|\\[{}\\](?!f?box)|[{}]")
# What may stand between the boxes of one list: signs, "and", "or" or "perhaps", a name, the unit of the first.
_JOINING = re.compile(
    r"(?:[\s$.,;()&*/]|\n- |\d\. |\([a-z]\)|\\lor|\\[,;: ()\[\]\\]|\\q?quad|\b(?:and|or|maybe|perhaps|possibly)\b|\\%"
    r"|\\(?:text|mbox)\{[\s,]*(?:and|or)?[\s,]*\}|\\?[A-Za-z]+(?:_\{?\w\}?)?\s*=|\\text\{ ?[a-z]{1,12}\}|\^\\circ)*\Z"
)
_BESIDE = re.compile(
    r"(?:[ ~]|\\[,;: ])*(\\?%|\^ ?\{? ?\\circ ?\}?(?:\\text\{[CF]\})?"
    r"|\\(?:text|mbox|mathrm) ?\{[^{}]{1,40}\}(?:\^\{?[23]\}?)?)"
)
_PHRASE = re.compile(
    r"(?:\banswer(?: to [a-z ]{1,40})?\**(?: is| equals| =)?(?: therefore| thus| also)?|^####)(?![a-z])[\s:*,=]{0,9}",
    re.IGNORECASE | re.MULTILINE,
)
_SAID = re.compile(r"(?s:\\\[.*?\\\]|\$\$.*?\$\$)|.*")
_END = re.compile(
    r"[.?](?:\s|\Z|\*)|(?<=[$*)])!| \((?!or|and)(?=[a-z]{2})|[;,] [^\d\\$]*\Z"
    r"|,? (?:since|because|as|which|where|for|by|when|if)\b|[;,.] not\b|<[|/]"
)
# What takes an answer back or adds a second one: "or 151", "(possibly 151)", "? No, 151", "; if wrong, 151".
_HEDGE = re.compile(
    r"[\s$.,;:(*)\]\\]{0,9}(?:(?:or|maybe|perhaps|possibly|alternatively|if (?:not|wrong))\b|\?(?= ))[^\n\d=]{0,12}?"
    r"(?P<first>-?\d[\d.,/]*)"
    r"|[\s$]{0,9}(?:for|if|when)\b[^\n.]{0,30}\band (?P<second>-?\d[\d.,/]*) (?:for|if|when)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[A-Za-z][^=]* (?:is|are|equals?)\b(?! not)")


def extract_answers(text: str) -> tuple[tuple[str, ...], str | None]:
    """The answers that a message gives as one list, mostly of one, and None; or none and the reason."""
    answers, reason = extract_boxed(text)
    if reason != NO_ANSWER:
        return answers, reason
    for phrase in reversed(list(_PHRASE.finditer(text))):
        said = _SAID.findall(text[phrase.end() : phrase.end() + MAX_ANSWER_CHARS])[0]
        end = next((m for m in _END.finditer(said, 1) if said.count("$", 0, m.start()) % 2 == 0), None)
        said = said[: end.start() if end else None]
        hedges = _find_hedges(text, phrase.end() + len(said))
        said = said[match.end() :] if (match := _SENTENCE.match(said)) else said
        if re.search(r"\d|\\|\$|\A\W*\w+\W*\Z", said) and not re.match(r"\W*(?:correct|right|consistent)\b", said):
            return (*hedges, said.strip(" *`")), None
    return (), NO_ANSWER


def extract_boxed(text: str) -> tuple[tuple[str, ...], str | None]:
    """The content of the last box that is not empty, after those listed with it; or none and the reason."""
    boxes, is_cut = _boxes(text)
    if is_cut:
        return (), CUT_IN_BOX
    answers: list[str] = []
    hedges: tuple[str, ...] = ()
    begin = 0
    for start, first, last, end in reversed(boxes):
        if answers and end > begin:
            continue  # inside it
        if answers and (begin - end > 80 or not _JOINING.match(text[end:begin])):
            break
        content = text[first : min(last, first + 9 * MAX_ANSWER_CHARS)]  # of boxes inside one another, too
        content = re.sub(r"\\f?box(?:ed)? ?(?=\{)", "", content)[: MAX_ANSWER_CHARS + 1]
        if not spell(content):
            continue
        if not answers and (unit := _BESIDE.match(text, end)):
            content += unit[1] if not re.search(r"\\text|%|circ", content) else ""
        minus = re.search(r"(?:(?:=|\\[(\[]) ?- ?|(?:\$|\n|\A)-)\Z", text[max(0, start - 6) : start])
        hedges = hedges if answers else _find_hedges(text, end)
        answers.insert(0, content if not minus else f"-({content})" if re.search("[-+]", content) else f"-{content}")
        begin = start
    return ((*hedges, *answers), None) if answers else ((), NO_ANSWER)


def _find_hedges(text: str, end: int) -> tuple[str, ...]:
    """The number that replaces the answer before `end`, or stands beside it as an alternative; otherwise ()."""
    match = _HEDGE.match(text, end)
    return (match["first"] or match["second"],) if match else ()


def _boxes(text: str) -> tuple[list[tuple[int, int, int, int]], bool]:
    """(start, start and end of the content, end) of the closed boxes, and whether one is open after them."""
    if "box" not in text:
        return [], False
    open_braces: list[tuple[int, int]] = []
    boxes: list[tuple[int, int, int, int]] = []
    for match in _BRACE.finditer(text):
        if match["bare"]:
            boxes.append((match.start(), *match.span("bare"), match.end()))
        elif match[0] == "}":
            if open_braces:
                start, first = open_braces.pop()
                if start >= 0:
                    boxes.append((start, first, match.start(), match.end()))
        elif match[0][-1] not in "{}\\" or "box" in match[0]:
            open_braces.append((match.start(), match.end()))
        elif match[0] == "{":
            open_braces.append((-1, match.end()))
    last = boxes[-1][2] if boxes else -1
    return boxes, any(start >= 0 and first > last for start, first in open_braces)
