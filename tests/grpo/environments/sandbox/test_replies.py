"""What a guest sends back: forged, dripping, huge, or no valid text."""

import tracemalloc

import pytest

from tests.grpo.environments.sandbox.attacker import attack

FLOOD = """
import os
while True:
    try: os.write(3, b'x' * 10**6)
    except OSError: pass
"""


@pytest.mark.parametrize("code", [
    FLOOD,
    "import os; os.write(3, bytes(8))",
    "import os; os.write(3, (2).to_bytes(8) + b'[]')",
    "import os; os.close(3)",
    "import os; os.write(3, (100_000).to_bytes(8) + b'[' * 100_000)",
])  # fmt: skip
def test_a_forged_reply_ends_the_sandbox_at_most(code):
    assert attack(code)[0] is None


DRIP = """
import os, time
data = (7_000_000).to_bytes(8) + b'0' * 6_900_000
while data:
    data = data[os.write(3, data):]
while True:
    os.write(3, b'x')
    time.sleep(0.001)
"""


def test_a_reply_that_drips_is_not_copied_for_each_byte():
    """The thread that reads holds the engine's interpreter lock; a copy of 7 MB for each byte would hold it all day."""
    attack("1")
    tracemalloc.start()
    assert attack(DRIP, seconds=2.0)[0] is None
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 6_900_000 < most < 10_000_000, "one copy of the reply, not two"


def test_huge_output_is_cut_and_endless_output_is_an_error():
    text, after = attack("print('a' * 900_000, 'z')")
    assert len(text) < 1100 and "characters left out" in text and text.endswith("z\n") and after == "2\n"
    text, after = attack("while True: print('a' * 1000)")
    assert "printed more than 1000000 characters" in text and len(text) < 1100 and after == "2\n"
    text, after = attack("kept = 7\nraise ValueError('a' * 30_000_000)", then="kept")
    assert "ValueError: aaa" in text and "characters left out" in text and len(text) < 1100 and after == "7\n"
    text, after = attack("print('\ud800')")
    assert "UnicodeEncodeError" in text and after == "2\n"


def test_a_syntax_error_shows_the_code_and_no_file_of_this_machine():
    text, _ = attack("x = (1")
    assert text.startswith('  File "<call 1>", line 1') and "never closed" in text and ".py" not in text
