"""Near-duplicates and variants are found, and the filter finds the same pairs as comparing all pairs."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import duplicates, synthetic
from data.duplicates import SHORT, SIMILARITY, Pair
from tests.data.conftest import make_words

TRAIN = (
    "In the garden of Ann there are $12$ rows of $\\frac{7}{2}$ metres each, and between every two of them "
    "a path of width $x$ with $x^2 - 3x = 40$. How long is the fence around all of it?"
)


def find(texts: list[str], answers: list[str] | None = None) -> tuple[list[Pair], list[list[int]]]:
    """Return the pairs and groups found. Without `answers`, all answers differ."""
    return duplicates.find(texts, answers or [str(index) for index in range(len(texts))])


def test_distinct_texts_are_not_duplicates() -> None:
    assert find([f"{make_words(i)} 7" for i in range(50)]) == ([], [])
    assert find([]) == ([], []) and find(["", "a"]) == ([], [])


@pytest.mark.parametrize(
    "other",
    [
        TRAIN.replace("$", ""),
        TRAIN.replace("\\frac{7}{2}", "\\dfrac 72"),
        TRAIN.replace("between every two of them ", "between each two\n\nof them, "),
        TRAIN.upper(),
        TRAIN.replace("Ann", "Bob"),
        TRAIN + " [asy] draw((0,0)--(17,5)); [/asy]",
        "2022 AIME I Problem 1: " + TRAIN,
        TRAIN + " The length is $\\frac{m}{n}$ metres in lowest terms. Find $m+n$.",
        TRAIN.replace("12", "Twelve"),
        TRAIN.replace("every two", "every 2"),
        TRAIN.replace("-", "\u2212"),
        TRAIN.replace("x", "u"),
        TRAIN.replace("$x$", "$\\theta$").replace("x", "\\theta"),
        TRAIN.partition(", and")[0],
        " ".join(reversed(TRAIN.split(". "))),
        "A path of width $x$ with $x^2 - 3x = 40$ is between every two of the $12$ rows of $\\frac{7}{2}$ metres each "
        "in the garden of Ann. How long is the fence around all of it?",
        TRAIN.replace("How long", "Find how long") + " Explain.",
    ],
)
def test_the_same_problem_in_other_words_is_a_near_duplicate(other: str) -> None:
    pairs, variants = find([make_words(1), TRAIN, make_words(2), other])
    assert [(pair.first, pair.second) for pair in pairs] == [(1, 3)] and not variants
    assert SIMILARITY <= pairs[0].similarity <= 1


@pytest.mark.parametrize(
    "other",
    [
        TRAIN.replace("12", "13"),
        TRAIN.replace("- 3x", "+ 3x"),
        TRAIN.replace("every two", "every three"),
        TRAIN.replace("Ann", "Bob").replace("40", "4000"),
        TRAIN.replace("12", "40").replace("= 40", "= 12"),
    ],
)
def test_a_problem_with_other_numbers_is_a_variant(other: str) -> None:
    assert find([make_words(1), TRAIN, make_words(2), other]) == ([], [[1, 3]])


@pytest.mark.parametrize("other", [TRAIN.replace("12", "13"), TRAIN.replace("Ann", "Bob").replace("12", "13")])
def test_changing_one_number_but_not_the_answer_is_a_near_duplicate(other: str) -> None:
    assert [(pair.first, pair.second) for pair in find([TRAIN, other], ["7", "7"])[0]] == [(0, 1)]
    assert find([TRAIN, other], ["7", "8"]) == ([], [[0, 1]])


def test_questions_of_a_template_with_the_same_answer_are_variants() -> None:
    texts = ["What is 2 plus 7?", "What is 4 plus 5?", "What is 5 plus 4?"]
    assert find(texts, ["9"] * 3) == ([], [[0, 1, 2]])


def test_two_templates_are_compared_by_their_numbers() -> None:
    texts = [
        f"{start} {n} of the cows of the farmer, and how many has he?" for start in ("Sell", "Give") for n in (7, 8)
    ]
    none = "Sell some of the cows of the farmer, and how many has he?"
    pairs, variants = find([*texts, none], ["1", "2", "3", "4", "4"])
    assert {(pair.first, pair.second) for pair in pairs} == {(0, 2), (1, 3), (3, 4)} and variants == [[0, 1, 2, 3, 4]]


def test_stock_phrases_do_not_make_problems_alike() -> None:
    stock = "in the form $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
    assert find([f"{make_words(i)} {stock}" for i in range(20)], ["7"] * 20) == ([], [])
    assert find([f"What is the largest possible value of {make_words(i)}" for i in range(20)], ["7"] * 20) == ([], [])


def test_thousands_separators_are_ignored() -> None:
    spellings = [TRAIN.replace("12", number) for number in ("12000", "12,000", "12{,}000")]
    assert len(find(spellings)[0]) == 3


def test_two_diagrams_make_two_problems() -> None:
    texts = [f"What is the shaded area? [asy] draw((0,0)--({size},1)); [/asy]" for size in (3, 4, 3)]
    pairs, variants = find(texts)
    assert pairs == [Pair(0, 2, 1.0)] and variants == [[0, 1, 2]]
    assert len(find([texts[0], texts[0].partition("--")[0]])[0]) == 1, "a diagram that is cut is no other one"


def test_the_synthetic_task_is_two_groups_of_variants() -> None:
    texts = [one.question for split in synthetic.SPLITS for one in synthetic.distinct_problems(split, 500)]
    pairs, variants = find(texts)
    assert not pairs and sorted(len(group) for group in variants) == sorted(
        sum(word in text for text in texts) for word in synthetic.OPERATIONS
    )


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([12, 80]))
def test_the_prefix_filter_loses_no_pair(seed: int, vocabulary: int, size: int) -> None:
    rng = random.Random(seed)
    sets = list(
        dict.fromkeys(
            frozenset((str(rng.randrange(2 * vocabulary)),) for _ in range(rng.randint(1, size))) for _ in range(12)
        )
    )
    expected = {}
    for a, b in combinations(range(len(sets)), 2):
        shared, union = len(sets[a] & sets[b]), len(sets[a] | sets[b])
        shorter = max(SHORT, min(len(sets[a]), len(sets[b])))
        if max(shared / shorter, shared / union) >= SIMILARITY:
            expected[a, b] = max(shared / shorter, shared / union), shared / union
    assert {(a, b): (similarity, whole) for a, b, similarity, whole in duplicates.find_alike(sets)} == expected
