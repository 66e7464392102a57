r"""Other spellings of sets and numbers: `\mathbb{R}\setminus\{0\}`, "5 million", `(1,234, 5)`."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.answers import grade

from .verdicts import is_equal


@pytest.mark.parametrize("brackets", ["({})", "\\{{{}\\}}", "[{}]", "\\left({}\\right)", "{}"])
def test_thousands_separator_has_no_blank_if_other_commas_do(brackets: str) -> None:
    pair = brackets.format("1234, 5")
    assert is_equal(brackets.format("1,234, 5"), pair) and is_equal(
        brackets.format("1,234, 5"), brackets.format("1234,5")
    )
    assert not is_equal(brackets.format("1,234, 5"), brackets.format("1, 234, 5"))
    assert is_equal(brackets.format("12,345,678, 9,012"), brackets.format("12345678, 9012"))


@pytest.mark.parametrize("text", ["(1,2, 3)", "(1, 2,3)", "(1,23, 456)", "(0,123, 4)"])
def test_other_commas_separate_the_elements(text: str) -> None:
    assert is_equal(text, text.replace(" ", "")) and is_equal(text, text.replace(" ", "").replace(",", ", "))


INTERVALS = [("[-2,7]", r"-2\le x\le7"), ("(-2,7]", r"-2<x\le7"), (r"[3,\infty)", r"x\ge3"), (r"(-\infty,3)", "x<3")]


@pytest.mark.parametrize(("interval", "inequality"), INTERVALS)
@pytest.mark.parametrize("name", ["x", "a", r"\theta", "x_1"])
@pytest.mark.parametrize("sign", [r"\in", "\u2208", r"\in\left"])
def test_membership_is_an_inequality(interval: str, inequality: str, name: str, sign: str) -> None:
    said = inequality.replace("x", name)
    right = "\\right" if "left" in sign else ""
    assert is_equal(f"{name} {sign} {interval[:-1]}{right}{interval[-1]}", said)
    assert not is_equal(f"{name}\\in {interval}", said.replace("7", "8").replace("3", "4"))


REALS = [
    r"\mathbb{R}\setminus\{0\}",
    r"\mathbb R \setminus \{0\}",
    r"\mathbb{R}\backslash\{0\}",
    r"\mathbb{R}-\{0\}",
    "\u211d\u2216{0}",
]
WITHOUT_ZERO = [
    r"(-\infty,0)\cup(0,\infty)",
    r"x\ne0",
    r"x \in \mathbb{R}\setminus\{0\}",
    r"x\in(-\infty,0)\cup(0,+\infty)",
]


@pytest.mark.parametrize("first", REALS)
@pytest.mark.parametrize("second", REALS + WITHOUT_ZERO)
def test_the_reals_without_a_number_are_two_intervals(first: str, second: str) -> None:
    assert is_equal(first, second)
    for other in (
        r"\mathbb{R}",
        r"\mathbb{R}\setminus\{1\}",
        r"(-\infty,0]\cup(0,\infty)",
        r"\{0\}",
        r"\mathbb{R}\setminus\{0,1\}",
    ):
        assert not is_equal(first, other)


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=4, unique=True), st.randoms())
def test_the_reals_without_several_numbers(numbers: list[int], random: object) -> None:
    ends = ["-\\infty", *map(str, sorted(numbers)), "\\infty"]
    union = "\\cup".join(f"({a},{b})" for a, b in pairwise(ends))
    shuffled = ",".join(map(str, random.sample(numbers, len(numbers))))  # type: ignore[attr-defined]
    assert is_equal(f"\\mathbb{{R}}\\setminus\\{{{shuffled}\\}}", union)


SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


@given(
    st.sampled_from(sorted(SCALES)),
    st.integers(1, 9999),
    st.sampled_from(["{} {}", "{}\\text{{ {}}}", "{}\\ \\text{{{}}}", "{}~\\mathrm{{{}}}"]),
)
def test_a_number_may_end_in_words(scale: str, tenths: int, form: str) -> None:
    text = form.format(tenths / 10, scale)
    value = tenths * 10 ** (SCALES[scale] - 1)
    assert is_equal(text, str(value)) and is_equal(text, f"{value:,}") and not is_equal(text, str(value + 1))
    assert not grade(f"\\boxed{{{text}}}", str(tenths / 10)).correct


@pytest.mark.parametrize(
    "text", ["2.5 million dollars", r"\$2.5\text{ million}", r"2.5\text{ million dollars}", r"\$2.5 million"]
)
def test_a_scale_may_have_a_unit(text: str) -> None:
    assert is_equal(text, "2500000") and is_equal(text, r"\$2,500,000") and not is_equal(text, r"2500000\text{ cm}")
    assert not is_equal(text, "2.5") and not is_equal(text, r"\$2.5")


@pytest.mark.parametrize("unit", ["m/s", "m/s^2", "m/min", "g/l", "km/h", "cm/s"])
@pytest.mark.parametrize("value", ["5", "0.5", r"\frac{5}{2}", "12"])
def test_a_quotient_of_units_may_be_bare(value: str, unit: str) -> None:
    power = "^2" if unit.endswith("^2") else ""
    assert is_equal(f"{value} {unit}", f"{value}\\text{{ {unit.removesuffix('^2')}}}{power}")
    assert is_equal(f"{value} {unit}", value) and not is_equal(f"{value} {unit}", f"{value}\\text{{ kg}}")
