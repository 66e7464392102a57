"""How a read-only command ends when its output goes into a pipe."""

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int]) -> NoReturn:
    """Run a command line to its exit code. A reader that stops early (`| head`) ends it without a traceback.

    Not for a command that writes files in several parts, starts processes or holds connections. It ends at once, as
    `cat` does, and a connection closed by the other side would end it too.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
