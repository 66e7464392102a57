r"""Constants with any difference are unequal, and identities between constants hold."""

import pytest

from reward.equivalence import equal

CONSTANTS = [
    "1", r"\sqrt{2}", r"\pi", r"\sqrt{2}+\sqrt{3}", r"\ln 2", "e^2", r"\cos\frac{\pi}{7}", "2^{1/3}", r"\log_2 3",
    r"\sqrt{2+\sqrt{3}}", r"\pi\sqrt{2}", r"\arctan 3", "x", "x^2+1",
]  # fmt: skip


@pytest.mark.parametrize("digits", [1, 50, 89, 90, 91, 95, 101, 300, 1000, 9000])
@pytest.mark.parametrize("constant", CONSTANTS)
def test_tiny_rational_difference_is_detected(constant: str, digits: int) -> None:
    assert not equal(constant, f"{constant}+10^{{-{digits}}}")
    assert not equal(f"{constant}-10^{{-{digits}}}", constant)


@pytest.mark.parametrize("digits", [1, 89, 95, 120, 1000])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\sqrt{6}+TINY", r"\sqrt{2}\sqrt{3}"), (r"\sqrt{3+2\sqrt{2}}+TINY", r"1+\sqrt{2}"),
        (r"\sqrt{1+TINY}", "1"), (r"\ln(2+TINY)", r"\ln 2"), (r"\ln 6+TINY", r"\ln 2+\ln 3"),
        (r"\frac{1}{1+TINY}", "1"), (r"(1+TINY)x", "x"), (r"e^{TINY}", "1"),
    ],
)  # fmt: skip
def test_tiny_number_is_detected_anywhere(first: str, second: str, digits: int) -> None:
    assert not equal(first.replace("TINY", f"10^{{-{digits}}}"), second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
        (r"\sqrt{5-2\sqrt6}+\sqrt2", r"\sqrt3"),
        (r"\sqrt[3]{2+\sqrt{5}}+\sqrt[3]{2-\sqrt{5}}", "1"),
        (r"\cos\frac{\pi}{7}-\cos\frac{2\pi}{7}+\cos\frac{3\pi}{7}", r"\frac12"),
        (r"\sin 10°\sin 50°\sin 70°", r"\frac18"),
        (r"\tan 1°\tan 89°", "1"),
        (r"\cot\frac{\pi}{24}", r"\sqrt2+\sqrt3+\sqrt4+\sqrt6"),
        (r"\cos 36°", r"\frac{1+\sqrt5}{4}"),
        (r"\ln 6", r"\ln 2+\ln 3"),
        (r"\arctan 1+\arctan 2+\arctan 3", r"\pi"),
        (r"2^{\log_2 5}", "5"),
        (r"e^{i\pi}", "-1"),
        (r"\sqrt{i}", r"\frac{1+i}{\sqrt2}"),
        (r"(1+\sqrt2)^{100}(\sqrt2-1)^{100}", "1"),
        ("2x-x", "x"),
    ],
)
def test_identities_hold(first: str, second: str) -> None:
    assert equal(first, second) and not equal(first, f"({second})+1")
