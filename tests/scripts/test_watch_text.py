"""Numbers, texts and curves in the columns of the live view."""

import pytest
from rich.cells import cell_len

from scripts.watch.text import cut_to_end, duration, flatten_text, number, sparkline


def test_curves() -> None:
    assert sparkline([0.0, 1.0, None, 0.5], 10) == "▁█ ▅"
    assert sparkline([5.0] * 3, 10) == "▄▄▄" and sparkline([], 10) == "" and sparkline([None], 10) == " "
    assert len(sparkline([float(i) for i in range(1000)], 10)) == 10
    spike = [0.0] * 500 + [1.0] + [0.0] * 499
    assert sparkline(spike, 10, max) == "▁▁▁▁▁█▁▁▁▁"


@pytest.mark.parametrize("value", [0, 1e-9, -1e-9, 0.001, -0.5, 99.9994, 12345.6, -99999, 1e5, 3.14e300, -3.14e-300])
def test_numbers_fit_their_column(value: float) -> None:
    assert len(number(value)) <= 8
    assert float(number(value)) == pytest.approx(value, rel=0.1)


def test_lengths_of_time() -> None:
    seconds = (3.14, 9.96, 59.4, 61, 3599, 3 * 3600 + 120, 49 * 3600)
    assert [duration(s) for s in seconds] == ["3.1 s", "10 s", "59 s", "1 min", "1 h 00 min", "3 h 02 min", "2 d 1 h"]


def test_text_of_files() -> None:
    assert flatten_text("a\n\x1b[1mb\u202ec\ud800") == "a ?[1mb?c?"
    assert cut_to_end("abcdef", 6) == "abcdef" and cut_to_end("abcdefg", 6) == "…cdefg"
    assert cell_len(cut_to_end("名" * 50, 11)) == 11
