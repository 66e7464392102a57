r"""Finds near-duplicates: problems that say the same in other words, and variants, which differ in a number.

A text becomes a sequence of words, LaTeX commands and signs, without markup and diagrams; each number in it is masked
and kept beside it. Two texts are alike when the Jaccard similarity of their sets of 3-token shingles is at least
`SIMILARITY` (Broder 1997, "On the resemblance and containment of documents"). It is computed exactly; a prefix filter
(Chaudhuri, Ganti and Kaushik 2006, "A primitive operator for similarity joins") leaves out pairs that cannot reach it.

Alike and with the same numbers (in the same order where the wording is the same) are near-duplicates; alike and with
other numbers are variants: another problem, which a model may still solve by having seen the first.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

# One other word in a text of 30 gives 0.8, three give 0.5. Among 290 problems of AIME and MATH no pair with the same
# numbers reaches 0.3.
SIMILARITY = 0.5
SHINGLE = 3

_DIAGRAM = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL | re.IGNORECASE)
_BARE_FRACTION = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)")
_LATEX_SPACE = re.compile(r"\\(?:[\[\]()!,;: ]|quad|qquad|left|right|displaystyle|text|textbf|mathrm|mbox)(?![A-Za-z])")
# A minus belongs to its number: x^2 - 3x and x^2 + 3x are two problems.
_NUMBER = r"-?\s*(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)(?:\.\d+)?"
_TOKEN = re.compile(rf"(?P<number>{_NUMBER})|\\[A-Za-z]+|[A-Za-z]+|[^\sA-Za-z0-9]")
_MARKUP = frozenset("${}.,;:!?'\"`~\\")
_NUMBER_WORDS = frozenset(
    ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "hundred", "thousand"]
)
_MASK = "#"


@dataclass(frozen=True)
class Pair:
    """Two near-duplicates, as indices into what was searched, and the Jaccard similarity of their shingles."""

    first: int
    second: int
    similarity: float


@dataclass(frozen=True)
class _Text:
    words: tuple[str, ...]
    numbers: tuple[str, ...]
    diagram: tuple[str, ...]


def find(texts: Sequence[str]) -> tuple[list[Pair], list[list[int]]]:
    """Near-duplicate pairs, and groups of variants (each of two or more), both as sorted indices into `texts`."""
    read = [_read(text) for text in texts]
    by_words: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, one in enumerate(read):
        by_words[one.words].append(index)
    groups = list(by_words.values())
    root = list(range(len(texts)))  # of what is alike
    pairs = []
    for group in groups:
        _join(root, group)
        same_numbers: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index in group:
            same_numbers[read[index].numbers].append(index)
        for members in same_numbers.values():
            pairs += [Pair(i, j, 1.0) for i, j in combinations(members, 2) if _diagrams_fit(read[i], read[j])]
    for a, b, similarity in _alike([_shingles(words) for words in by_words]):
        _join(root, [groups[a][0], groups[b][0]])
        by_numbers: dict[tuple[str, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, group in enumerate((groups[a], groups[b])):
            for index in group:
                by_numbers[tuple(sorted(read[index].numbers))][side].append(index)
        for sides in by_numbers.values():
            fitting = (pair for pair in product(*sides) if _diagrams_fit(read[pair[0]], read[pair[1]]))
            pairs += [Pair(min(pair), max(pair), similarity) for pair in fitting]
    same = list(range(len(texts)))
    for pair in pairs:
        _join(same, [pair.first, pair.second])
    variants = [group for group in _groups(root) if len({_top(same, index) for index in group}) > 1]
    return sorted(pairs, key=lambda pair: (pair.first, pair.second)), variants


def _read(text: str) -> _Text:
    diagram = " ".join(_DIAGRAM.findall(text))
    plain = _LATEX_SPACE.sub(" ", _BARE_FRACTION.sub(r"\\frac{\1}{\2}", _DIAGRAM.sub(" ", text)))
    words, numbers = [], []
    for match in _TOKEN.finditer(plain):
        token = match[0].lower()
        if match["number"] or token in _NUMBER_WORDS:
            numbers.append(re.sub(r"[\s,{}]", "", token))
            words.append(_MASK)
        elif token not in _MARKUP:
            words.append({"\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\leq": "\\le", "\\geq": "\\ge"}.get(token, token))
    return _Text(tuple(words), tuple(numbers), tuple(re.findall(r"\d+", diagram)))


def _diagrams_fit(a: _Text, b: _Text) -> bool:
    """Equal words may ask of two different diagrams; a diagram that only one of them has decides nothing."""
    return not a.diagram or not b.diagram or a.diagram == b.diagram


def _shingles(words: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    return frozenset(words[at : at + SHINGLE] for at in range(max(1, len(words) - SHINGLE + 1)))


def _alike(sets: Sequence[frozenset]) -> Iterator[tuple[int, int, float]]:
    """(a, b, similarity) with a < b for all pairs of sets with a Jaccard similarity of at least SIMILARITY.

    Such a pair shares one of its first |s| - ceil(SIMILARITY * |s|) + 1 elements, in any order common to all sets;
    rare ones first leaves the fewest pairs to compare.
    """
    frequency = Counter(element for one in sets for element in one)
    with_element: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for b, one in enumerate(sets):
        rare_first = sorted(one, key=lambda element: (frequency[element], element))
        prefix = rare_first[: len(one) - math.ceil(SIMILARITY * len(one)) + 1]
        for a in sorted({a for element in prefix for a in with_element[element]}):
            shared = len(one & sets[a])
            similarity = shared / (len(one) + len(sets[a]) - shared)
            if similarity >= SIMILARITY:
                yield a, b, similarity
        for element in prefix:
            with_element[element].append(b)


def _join(root: list[int], members: Sequence[int]) -> None:
    """Puts the members into one group: `root` leads from each index to the smallest of its group."""
    tops = {_top(root, member) for member in members}
    for top in tops:
        root[top] = min(tops)


def _top(root: list[int], index: int) -> int:
    while root[index] != index:
        root[index] = index = root[root[index]]
    return index


def _groups(root: list[int]) -> Iterator[list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for index in range(len(root)):
        groups[_top(root, index)].append(index)
    yield from groups.values()
