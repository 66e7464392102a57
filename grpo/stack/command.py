"""How a command that only looks ends where its output goes into a pipe."""

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int]) -> NoReturn:
    """Run a command line to its exit code; a reader that has seen enough (`| head`) ends it, without a traceback.

    Not for a command that writes files in several parts, starts processes or holds connections: it ends at once, as
    `cat` does, and a connection that the other side closes would end it as well.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
