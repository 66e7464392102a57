"""docs/runs.md has every exit code of a run, and --help names the page."""

import signal

from grpo.launch.refusals import REFUSED
from grpo.launch.supervise.supervisor import FAILED, STOPPED
from grpo.run.lost_writes import LOSSY
from grpo.stack.checkout import CHECKOUT
from tests.docs.pages import get_page


def test_the_page_has_every_code() -> None:
    [table] = [table for table in get_page("docs/runs.md").tables if table[0][0] == "code"]
    signals = [128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)]
    assert FAILED == LOSSY
    assert [int(row[0]) for row in table[1:]] == [0, LOSSY, REFUSED, STOPPED, *signals]


def test_the_help_names_the_page() -> None:
    assert "# Exit codes: docs/runs.md" in (CHECKOUT / "train_grpo.sh").read_text()
