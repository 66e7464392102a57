"""Words that may follow a number as its unit, and words that change the number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import grade
from reward.notation import spell
from reward.units import split_unit

UNITS = [
    "cm", "inches", "feet", "ft", "miles", "mi.", "square units", "sq. units", "cubic inches", "cubic units", "degrees",
    "radians", "cents", "dollars", "minutes", "seconds", "hours", "days", "quarts", "gallons", "ounces", "pounds",
    "mph",
    "grams", "kg", "points", "ways", "solutions", "pairs", "ordered pairs", "triples", "triangles", "integers",
    "values",
    "numbers", "people", "students", "children", "men", "women", "paths", "months", "lengths", "vertices", "matrices",
    "distinct values", "positive integers", "possible values", "members", "coins", "games", "subsets", "permutations",
    "miles per hour", "feet per second", "dollars per hour", "m/s", "km/h", "revolutions", "turns", "cookies",
    "marbles",
    "acres", "bits", "units", "percent", "m", "s", "g", "h", "digits", "factors", "squares", "cubes", "tests", "sides",
]  # fmt: skip
NO_UNITS = [
    "trillion", "trillions", "million dollars", "hundredths", "fifths", "thirds", "quarters", "halves", "half",
    "tenths",
    "twelfths", "sixteenths", "twentieths", "thousandths", "point five", "factorial", "factorials", "cubed", "squared",
    "negative", "gross", "dozen", "dozens", "score", "scores", "tens", "hundreds", "thousand students", "or more",
    "or cows",
    "and two apples", "plus", "minus", "less", "more apples", "fewer cows", "not pairs", "to the fourth", "times ten",
    "times three", "choose", "reciprocals", "inverse", "base seven", "mod seven", "pi", "over two", "percent of pairs",
    "if", "least", "approximately", "nonillion", "quadrillions", "zeros five", "twenties", "sevens", "hundred miles",
    "double", "twice", "i", "x", "primes or squares", "is wrong", "this",
]  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_a_number_may_have_a_unit(unit: str) -> None:
    for gold in ("204", f"204\\text{{ {unit}}}"):
        assert grade(f"\\boxed{{204\\text{{ {unit}}}}}", gold).correct
        assert grade("\\boxed{204}", gold).correct
        assert not grade(f"\\boxed{{205\\text{{ {unit}}}}}", gold).correct


@pytest.mark.parametrize("words", NO_UNITS)
def test_words_that_name_another_number_are_not_a_unit(words: str) -> None:
    for box in (f"204\\text{{ {words}}}", f"204 {words}", f"204~\\mathrm{{{words}}}"):
        assert not grade(f"\\boxed{{{box}}}", "204").correct
        assert not grade("\\boxed{204}", box).correct


@pytest.mark.parametrize(
    "bare", ["204 solutions", "204 pairs", "204 cm", "204 square units", "204 miles per hour", "204 km/h"]
)
def test_a_unit_may_stand_without_text(bare: str) -> None:
    assert grade(f"\\boxed{{{bare}}}", "204").correct


@pytest.mark.parametrize("text", ["204xs", "204 abs", "204 xs", "204 m", "204 \\cos", "204ways to go"])
def test_letters_that_may_be_a_product_are_not_a_unit(text: str) -> None:
    assert split_unit(spell(text)) == (spell(text), "")


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("5\\text{ feet}", "5 ft", True), ("5\\text{ inches}", "5\\text{ in.}", True),
        ("5\\text{ kg}", "5\\text{ kilograms}", True),
        ("5\\text{ sq ft}", "5\\text{ square feet}", True), ("5\\text{ in}^2", "5\\text{ square inches}", True),
        ("5\\text{ m/s}", "5\\text{ meters per second}", True), ("5\\text{ cents}", "5\\text{ dollars}", False),
        ("5\\text{ in}^2", "5\\text{ in}", False), ("5\\text{ hours}", "5\\text{ minutes}", False),
        ("5^\\circ", "5\\text{ radians}", False),
        ("5^\\circ\\text{C}", "5^\\circ\\text{F}", False), ("5°C", "5^\\circ\\text{C}", True),
        ("5\\text{ units}", "5", True),
    ],
)  # fmt: skip
def test_units_are_compared_by_their_meaning(first: str, second: str, is_same: bool) -> None:
    assert (split_unit(spell(first)) == split_unit(spell(second))) is is_same


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_text_is_its_value_and_its_unit(before: str, unit: str) -> None:
    for text in (before + unit, f"{before}\\text{{{unit}}}", f"7 {unit}"):
        value, _ = split_unit(text)
        assert value == text or len(value) < len(text)
