r"""Other answers that the text after an announced one offers: "204. If zero counts, 205."

A response is never right by naming several answers. What a model's further number or equation means cannot be known, so
it counts as another answer unless the text says what else it is:
- A further value is offered as an answer at the start of a clause or after words that propose it ("or", "no", "it is",
  "we get"). Only the end of the clause or a condition may follow it.
- A further equation such as `$x = 205$` is offered in the same places. It is an explanation after words that introduce
  one ("where", "with", "since", "for", "here"), and as a part of a longer statement.
- A number is harmless if it counts something ("17 primes") or is denied ("not 205", "205 fails"). It is also harmless
  as a part of a statement or of a harmless list, and if it repeats the answer.

The search ends at a heading such as "Explanation:"; the steps below it have results of their own.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from reward import cues
from reward.literals import rational
from reward.prose import MAX_CLAUSE, Prose, Token, value_of

# No response explains a bare answer at greater length.
MAX_CHARS = 20_000

_HEADING = re.compile(
    r"^[ \t#*_>]*(?:(?:explanation|reason(?:ing)?|justification|proof|derivation)\b|(?:verification|check|solution|"
    r"details|step|why|how|let me (?:double[- ]?)?check|here(?:'s| is) (?:why|how))\b[^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)


_ALTERNATIVE_SIGNS = ("/", "&", "|")
_MAX_LABEL = 30
_MAX_NAME = 3
_MAX_ITEM = 100
# Nobody writes one answer in more ways.
MAX_OTHERS = 16


def other_answers(answer: str, after: str) -> list[str]:
    """The other answers that are offered in the text after an announced one. Equations in a row are one answer."""
    after = after[:MAX_CHARS]
    if heading := _HEADING.search(after):
        after = after[: heading.end()]
    if answer.replace("\\$", "").count("$") % 2:
        after = "$" + after
    return _Continuation(answer, after).offered()


class _Continuation(Prose):
    """The text after an answer. `at` is the position of the token that a method asks about."""

    def __init__(self, answer: str, after: str) -> None:
        plain = answer.replace("**", "").replace("`", "")
        super().__init__(after)
        self.said = {value_of(answer), value_of(plain)}
        self.numbers = {number for number in map(rational, self.said) if number is not None}
        self.units = set(re.findall(r"[a-z]{2,}", answer))
        self.is_number = bool(re.search("[0-9]", answer))
        self.harmless: set[int] = set()

    def offered(self) -> list[str]:
        answers: list[str] = []
        previous: int | None = None
        for at, token in enumerate(self.tokens):
            if not self._is_offered(at):
                continue
            is_listed = previous is not None and all(
                piece.text in cues.JOINING for piece in self.tokens[previous + 1 : at]
            )
            if is_listed and token.kind == self.tokens[previous or 0].kind == "equation":
                answers[-1] += f", {token.text}"
            else:
                answers.append(token.text)
            previous = at
        answers = list(dict.fromkeys(answers))
        return answers if len(answers) <= MAX_OTHERS else [", ".join(answers)]

    def _is_offered(self, at: int) -> bool:
        token = self.tokens[at]
        if token.kind == "symbol" or (token.kind == "word" and not self.is_number):
            same = {said.lower() for said in self.said}
            return self._is_other_symbol(at) and value_of(token.text).lower() not in same
        if token.kind not in ("value", "equation", "statement") or self._is_said(at):
            return False
        if token.kind == "statement":
            is_offered = self._is_after_a_proposing_word(at) or self._is_admitted(at)
        elif token.kind == "equation":
            is_stated = self._is_proposed(at) and self._is_bare(at) and self._says_nothing_else(at)
            is_offered = (
                (is_stated and not self._is_explained(at))
                or self._is_after_a_proposing_word(at)
                or self._is_admitted(at)
            )
        else:
            is_stated = self._is_proposed(at) and self._is_bare(at)
            is_offered = not self._is_label(at) and (is_stated or self._is_accepted(at))
        if not is_offered:
            self.harmless.add(at)
        return is_offered

    def _is_said(self, at: int) -> bool:
        """Whether a value is the announced one, in whatever spelling, or the announced one when rounded."""
        text = value_of(self.tokens[at].text)
        number = rational(text)
        if text in self.said or number in self.numbers:
            return True
        is_rounded = number is not None and "." in text and at and self.tokens[at - 1].text in cues.APPROXIMATE
        if not is_rounded or number is None:
            return False
        step = 10.0 ** -len(text.partition(".")[2])
        return not self.numbers or any(abs(number - said) <= step for said in self.numbers)

    def _says_nothing_else(self, at: int) -> bool:
        """Whether an equation is in the sentence of the answer, or is the point of another one: "Thus $x = 205$".

        A derivation may follow an answer, and its sentences have equations: "The base is 5, so $h = 12$".
        """
        sentence = self.sentence(at)
        words = {token.text for token in self.tokens[at - len(sentence) : at] if token.kind == "word"}
        is_first = self.begins[at] == 0
        if self.numbers and re.search(r"(?<![\\A-Za-z])[a-z]", value_of(self.tokens[at].text)):
            return False  # a formula does not compete with a number
        return (
            is_first
            or words <= cues.FUNCTION_WORDS
            or not words.isdisjoint(cues.PROPOSING | cues.CASES | cues.OTHERS | cues.TOO)
        )

    def _is_other_symbol(self, at: int) -> bool:
        """Whether a formula without numbers, or a word, is all that a clause proposes: "or $y$", "or odd"."""
        before, after = self.tokens[:at][-1:], self.tokens[at + 1 : at + 2]
        if after and after[0].kind not in ("end", "mark"):
            return False
        is_alone = self.tokens[at].kind == "symbol" and (not before or before[0].kind == "end")
        return is_alone or self._is_after_a_proposing_word(at)

    def _is_label(self, at: int) -> bool:
        """Whether a number only counts the items of a list: "1. First we place the rooks"."""
        text = self.tokens[at].text
        if not text.isdecimal() or int(text) > _MAX_LABEL:
            return False
        if at and self.tokens[at - 1].text != "\n":  # "1. We count. 2. We add."
            pairs = pairwise(self.words_before(at, _MAX_ITEM))
            if self.tokens[at - 1].kind != "end" or (str(int(text) - 1), ".") not in pairs:
                return False
        following = self.words_after(at, 2)
        return len(following) == 2 and following[0] in (".", ")", ":") and following[1] != "\n"

    def _is_proposed(self, at: int) -> bool:
        """Whether a value stands at the start of a clause, or after words that propose it."""
        if at == 0:
            return True
        before = self.tokens[at - 1]
        if before.text in cues.JOINING and self._continues_a_harmless_list(at):
            return False
        if before.kind in ("end", "mark"):
            return not self._opens_a_tuple(at) and not self._details_a_count(at)
        if before.kind == "operator":  # nothing is calculated at the start of a clause
            return self._is_after_an_offering_sign(at)
        if before.text in cues.CONNECTING:
            return True
        last = self.words_before(at, 3)
        if last == ["as", "well", "as"] or (last[-2:-1] == ["also"] and before.text in cues.ADMITTING):
            return True
        if before.text not in cues.VERBS and before.text not in cues.ADVERBS:  # "or is it 205?"
            return before.text in ("that", "it") and at > 1 and self.tokens[at - 2].text in cues.VERBS
        return self._is_after_a_subject(at)

    def _is_after_an_offering_sign(self, at: int) -> bool:
        sign, before = self.tokens[at - 1].text, self.tokens[at - 2] if at > 1 else None
        if sign == "=" and at > 2 and before and len(before.text) <= _MAX_NAME:
            return self._is_after_a_proposing_word(at - 2)
        if before is None or before.text in ("\\lor", "\\vee"):
            return sign in (*_ALTERNATIVE_SIGNS, "=")
        return before.kind in ("end", "mark") and before.text not in (")", "]")

    def _is_after_a_subject(self, at: int) -> bool:
        """Whether a verb gives its value to what stands for the answer: "it is", "the total becomes"."""
        words = [token.text.partition("'")[0] for token in self.tokens[max(0, at - 10) : at] if token.kind == "word"]
        while words and (words[-1] in cues.ADVERBS or words[-1] in cues.VERBS):
            words.pop()
        sentence = self.sentence(at)
        if not words or not cues.REASONS.isdisjoint(self.clause(at)) or self._is_of_an_instance(at):
            return False
        if words[-1] == "there":  # "there are 5" counts something else unless it is all that a sentence says
            is_sentence = sentence[0] == "there" and self.begins[at] > 0
            return is_sentence or not (cues.PROPOSING | cues.CASES | cues.CONCLUDING).isdisjoint(sentence)
        if words[-1] == "one" and words[-2:-1] in (["next"], ["previous"]):
            return False
        return words[-1] in cues.SUBJECTS or _is_about_the_answer(words)

    def _is_of_an_instance(self, at: int) -> bool:
        """Whether a clause is about one value of a variable: "for $k=1$ this gives 64"."""
        clause = self.tokens[at - len(self.clause(at)) : at]
        return any(one.text in cues.INSTANCE and two.kind == "equation" for one, two in pairwise(clause))

    def _is_explained(self, at: int) -> bool:
        """Whether a word before an equation introduces an explanation: "where", "here,"."""
        before = self.words_before(at, 3)
        while before and before[-1] in (",", ":"):
            before.pop()
        return bool(before) and before[-1] in cues.EXPLAINING

    def _is_admitted(self, at: int) -> bool:
        """Whether a value is said to be right as well: "$x = 205$ works too"."""
        is_other = not (cues.OTHERS | cues.TOO).isdisjoint(self.words_after(at, 4))
        return is_other and self.next_word(at) in cues.ADMITTED_BY

    def _is_accepted(self, at: int) -> bool:
        """Whether a number is said to fit as well: "75 would also satisfy the conditions"."""
        following = self.words_after(at, 5)
        fits = not cues.TOO.isdisjoint(following) and not cues.FITTING.isdisjoint(following)
        return fits and self.next_word(at) in cues.FITTING_BY and "not" not in following

    def _is_after_a_proposing_word(self, at: int) -> bool:
        before = self.words_before(at, 2)
        while before and before[-1] in (",", ":"):
            before.pop()
        return bool(before) and (before[-1] in cues.PROPOSING or before[-1] == "no")

    def _continues_a_harmless_list(self, at: int) -> bool:
        """Whether a value goes on with a list such as "the primes 2, 3 and 5". "If n > 2, 205" is no list."""
        if self.next_word(at) in cues.BRANCHES:
            return False
        last = at - 1
        while last >= 0 and self.tokens[last].text in cues.JOINING:
            last -= 1
        if last not in self.harmless:
            return False
        clause = self.tokens[max(0, last - MAX_CLAUSE) : last]
        begins = [n + 1 for n, token in enumerate(clause) if token.kind == "end" or token.text in ("(", ":")]
        begin = max(begins, default=0)
        leads = begin > 0 and clause[begin - 1].kind == "end"
        return self.tokens[at - 1].text != "," or not self._is_condition(clause[begin:], at, leads)

    def _is_condition(self, clause: Sequence[Token], at: int, leads: bool) -> bool:
        """Whether a comma before a token ends the condition of a sentence: "If n > 2, 205", "Since $k=2$, $x=205$"."""
        first = clause[0].text if clause else ""
        if self.tokens[at].kind != "equation":
            return first in cues.CASES
        is_open = all(token.text != "," for token in clause)
        return is_open and (first in cues.CONDITIONAL or (leads and first in cues.CASES | cues.LEADING))

    def _opens_a_tuple(self, at: int) -> bool:
        """Whether coordinates or the argument of a function begin here: `f(3)`, `= (3, 5)`, "is (1, 2)"."""
        if self.tokens[at - 1].text != "(" or at < 2:
            return False
        before = self.tokens[at - 2]
        if before.kind == "operator":
            return True
        has_comma = self.next_word(at) == ","
        return has_comma and before.kind in ("word", "mark") and before.text not in cues.PROPOSING

    def _details_a_count(self, at: int) -> bool:
        """Whether a value begins the list of what was counted: "8 terms: 1, 4, 9"."""
        if at < 3 or self.tokens[at - 1].text != ":" or self.tokens[at - 2].text in cues.CANDIDATES:
            return False
        return self.tokens[at - 2].kind == "word" and self.tokens[at - 3].kind in ("value", "statement")

    def _is_bare(self, at: int) -> bool:
        """Whether nothing follows a value but the end of its clause, a condition, or approval."""
        if at + 1 == len(self.tokens):
            return True
        after = self.tokens[at + 1]
        if after.text in ("-", "\u2013") and self.words_after(at, 3)[2:] == ["="]:
            return False  # 205 - 1 = 204
        if after.kind in ("end", "mark"):
            return after.text not in (":", "...", "\u2026")
        if after.kind == "value" and at > 1 and self.tokens[at - 1].text == ":":
            return self.tokens[at - 2].text in cues.CANDIDATES
        if after.kind == "operator":
            return False
        if after.text in cues.CONDITIONS or after.text in self.units:
            return True
        following = self.words_after(at, 6)
        if after.text in cues.MODALS or after.text in ("is", "seems"):
            return not cues.APPROVED.isdisjoint(following) and "not" not in following
        if after.text == "in":
            return any(word in ("case", "which", "that") for word in following[1:3])
        return at > 0 and self.tokens[at - 1].text in cues.PROPOSING and after.kind == "word"


def _is_about_the_answer(subject: Sequence[str]) -> bool:
    """Whether a subject is another answer ("the other root") or the answer of one case ("the value for even n")."""
    if not cues.OTHERS.isdisjoint(subject[-4:]):
        return True
    cases = ("for", "when", "if", "with", "without")
    return any(noun in cues.SUBJECTS and word in cases for noun, word in pairwise(subject))
