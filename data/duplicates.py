r"""Finds near-duplicates: problems that say the same in other words, and variants, which differ in a number.

A text becomes a sequence of words, LaTeX commands and signs, without markup and diagrams. Number words and dashes are
normalized. Names of variables and points are masked. Numbers are masked too, and kept beside the sequence. Two texts
are alike if they share `SIMILARITY` of the 3-token shingles of the shorter one. This is the containment of Broder 1997,
"On the resemblance and containment of documents". A part, a heading or another question at the end thus hides nothing.
Containment is computed exactly. A prefix filter (Chaudhuri, Ganti and Kaushik 2006, "A primitive operator for
similarity joins") skips pairs that cannot reach it.

Alike texts are near-duplicates if the numbers of one contain those of the other, or if the answer and most numbers are
the same. If even the wording is the same, the order of the numbers counts. Texts that are alike as a whole, but with
other numbers, are variants: another problem, which a model may still solve because it has seen the first.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

# Among 290 problems of AIME and MATH only one pair with fitting numbers reaches 0.3; it has 0.46. Problems with
# shuffled clauses have 0.53 and more, except three with drawing commands.
SIMILARITY = 0.5
SHINGLE = 3
# A question such as "what is the value of x" is in many problems. A shorter text counts as having this length, unless
# its shingles are SIMILARITY of those of both texts.
SHORT = 16

_DIAGRAM = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL | re.IGNORECASE)
_HEADING = re.compile(r"\A\W*(?:\d{4}\W+)?(?:[A-Z]{3,5}\W+)?(?:I{1,3}\W+)?(?:Problem|Question|Exercise)\W*\d+\W+")
_BARE_FRACTION = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)")
_LATEX_SPACE = re.compile(r"\\(?:[\[\]()!,;: ]|quad|qquad|left|right|displaystyle|text|textbf|mathrm|mbox)(?![A-Za-z])")
# Unicode hyphens, dashes and minus sign.
_DASHES = dict.fromkeys([*range(0x2010, 0x2016), 0x2212, 0xFE63, 0xFF0D], "-")
_UNITS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES = {word: value for value, word in enumerate(["zero", *_UNITS, "ten", *_TEENS])}
_VALUES |= {word: 10 * value for value, word in enumerate(_TENS, 2)} | {"hundred": 100, "thousand": 1000}
_NUMBER_WORD = re.compile(
    rf"\b(?:(?P<tens>{'|'.join(_TENS)})[\s-]+(?P<unit>{'|'.join(_UNITS)})|(?P<word>{'|'.join(_VALUES)}))\b",
    re.IGNORECASE,
)
# A minus belongs to its number: x^2 - 3x and x^2 + 3x are two problems.
_NUMBER = r"-?\s*(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)(?:\.\d+)?"
# A variable (also Greek) or points: x, \theta, ABC.
_NAME = r"(?:\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|psi|omega)|[A-Za-z]|[A-Z]{2,6})(?![A-Za-z])"
_TOKEN = re.compile(rf"(?P<number>{_NUMBER})|(?P<name>{_NAME})|\\[A-Za-z]+|[A-Za-z]+|[^\sA-Za-z0-9]")
_MARKUP = frozenset("${}.,;:!?'\"`~\\")
_NUMBER_MASK, _NAME_MASK = "#", "@"


@dataclass(frozen=True)
class Pair:
    """Two near-duplicates, as indices into the searched texts, and their similarity: SIMILARITY to 1."""

    first: int
    second: int
    similarity: float


@dataclass(frozen=True)
class _Text:
    words: tuple[str, ...]
    numbers: tuple[str, ...]
    diagram: tuple[str, ...]
    answer: str


def find(texts: Sequence[str], answers: Sequence[str]) -> tuple[list[Pair], list[list[int]]]:
    """Return near-duplicate pairs, and groups of variants (each of two or more), both as sorted indices into `texts`.

    Args:
        answers: of each text; equal answers are spelled alike.
    """
    read = [_read(text, answer) for text, answer in zip(texts, answers, strict=True)]
    by_words: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, one in enumerate(read):
        by_words[one.words].append(index)
    groups = list(by_words.values())
    root = list(range(len(texts)))  # of groups of alike texts
    pairs = []
    for group in groups:
        _join(root, group)
        pairs += [Pair(i, j, 1.0) for i, j in _find_in_group(read, group)]
    for a, b, similarity, resemblance in find_alike([_shingles(words) - _STOCK for words in by_words]):
        if resemblance >= SIMILARITY:
            _join(root, [groups[a][0], groups[b][0]])
        for i, j in _find_between_groups(read, groups[a], groups[b]):
            _join(root, [i, j])
            pairs.append(Pair(min(i, j), max(i, j), similarity))
    same = list(range(len(texts)))
    for pair in pairs:
        _join(same, [pair.first, pair.second])
    by_top: dict[int, list[int]] = defaultdict(list)
    for index in range(len(texts)):
        by_top[_top(root, index)].append(index)
    variants = [group for group in by_top.values() if len({_top(same, index) for index in group}) > 1]
    return sorted(pairs, key=lambda pair: (pair.first, pair.second)), variants


def _read(text: str, answer: str) -> _Text:
    diagram = " ".join(_DIAGRAM.findall(text))
    plain = _HEADING.sub("", _DIAGRAM.sub(" ", text).translate(_DASHES))
    plain = _NUMBER_WORD.sub(_digits, plain)
    plain = _LATEX_SPACE.sub(" ", _BARE_FRACTION.sub(r"\\frac{\1}{\2}", plain))
    if plain.isupper():  # words, not points
        plain = plain.lower()
    words, numbers = [], []
    for match in _TOKEN.finditer(plain):
        token = match[0].lower()
        if match["number"]:
            numbers.append(re.sub(r"[\s,{}]", "", token))
            words.append(_NUMBER_MASK)
        elif match["name"]:
            words.append(_NAME_MASK)
        elif token not in _MARKUP:
            words.append({"\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\leq": "\\le", "\\geq": "\\ge"}.get(token, token))
    return _Text(tuple(words), tuple(numbers), tuple(re.findall(r"\d+", diagram)), answer)


def _digits(match: re.Match[str]) -> str:
    return str(sum(_VALUES[word.lower()] for word in match.groups() if word))


def _find_in_group(read: Sequence[_Text], group: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the near-duplicates in a group with the same wording, which may be one of thousands from a template."""
    by_numbers, by_answer = defaultdict(list), defaultdict(list)
    for index in group:
        by_numbers[read[index].numbers].append(index)
        by_answer[read[index].answer].append(index)
    for members in by_numbers.values():
        yield from ((i, j) for i, j in combinations(members, 2) if _has_matching_diagrams(read[i], read[j]))
    for members in by_answer.values():
        for i, j in combinations(members, 2):
            a, b = read[i].numbers, read[j].numbers
            if a != b and 2 * sum(map(str.__eq__, a, b)) > len(a) and _has_matching_diagrams(read[i], read[j]):
                yield i, j


def _find_between_groups(
    read: Sequence[_Text], first: Sequence[int], second: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the near-duplicates between two groups of one wording each, which may also come from templates.

    It compares pairs that share a number, and pairs in which one text has no number.
    """
    with_number: dict[str | None, list[int]] = defaultdict(list)
    for j in second:
        for number in set(read[j].numbers) or (None,):
            with_number[number].append(j)
    for i in first:
        numbers = read[i].numbers
        candidates = {j for number in (*numbers, None) for j in with_number.get(number, ())} if numbers else second
        for j in candidates:
            if _has_matching_numbers(read[i], read[j]) and _has_matching_diagrams(read[i], read[j]):
                yield i, j


def _has_matching_numbers(a: _Text, b: _Text) -> bool:
    """Say whether alike texts have the same numbers, apart from a part that only one has; or most, with one answer."""
    fewer = min(len(a.numbers), len(b.numbers))
    shared = sum((Counter(a.numbers) & Counter(b.numbers)).values())
    if a.answer == b.answer:
        return shared == fewer or 2 * shared > fewer
    return shared == fewer and (fewer > 0 or a.numbers == b.numbers)


def _has_matching_diagrams(a: _Text, b: _Text) -> bool:
    """Say whether diagrams may match: equal words may refer to two. A cut or missing diagram decides nothing."""
    return Counter(a.diagram) <= Counter(b.diagram) or Counter(b.diagram) <= Counter(a.diagram)


def _shingles(words: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    return frozenset(words[at : at + SHINGLE] for at in range(max(1, len(words) - SHINGLE + 1)))


# How contests ask for a fraction as an integer: it says nothing about the problem.
_STOCK = _shingles(
    _read(r"\frac{m}{n}, where $m$ and $n$ are relatively prime positive integers. Find $m + n$.", "").words
)


def find_alike(sets: Sequence[frozenset]) -> Iterator[tuple[int, int, float, float]]:
    """Yield (a, b, similarity, resemblance) with a < b for all pairs of sets with a similarity of at least SIMILARITY.

    The similarity is the size of the intersection, as a share of the smaller set (at least SHORT) or of the union,
    whichever share is larger. The share of the union is the resemblance. Such a pair shares one of the first |s| -
    ceil(SIMILARITY * |s|) + 1 elements of the smaller set s, in any order. Rare elements first leave the fewest pairs
    to compare.
    """
    frequency = Counter(element for one in sets for element in one)
    with_element: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for b in sorted(range(len(sets)), key=lambda index: -len(sets[index])):
        one = sets[b]
        rare_first = sorted(one, key=lambda element: (frequency[element], element))
        prefix = rare_first[: len(one) - math.ceil(SIMILARITY * len(one)) + 1]
        for a in {a for element in prefix for a in with_element[element]}:
            shared = len(one & sets[a])
            union = len(one) + len(sets[a]) - shared
            similarity = shared / min(union, max(len(one), SHORT))
            if similarity >= SIMILARITY:
                yield min(a, b), max(a, b), similarity, shared / union
        for element in one:
            with_element[element].append(b)


def _join(root: list[int], members: Sequence[int]) -> None:
    """Merge the members into one group: `root` leads from each index to the smallest of its group."""
    tops = {_top(root, member) for member in members}
    for top in tops:
        root[top] = min(tops)


def _top(root: list[int], index: int) -> int:
    while root[index] != index:
        root[index] = index = root[root[index]]
    return index
