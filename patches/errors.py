"""Exit codes of the patch tool and the one exception it raises."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. `status` returns the code of the state it finds, so 0 means fully applied."""

    OK = 0
    FAILED = 1  # an error without a code of its own
    USAGE = 2  # wrong command line
    PRISTINE = 10
    DRIFTED = 12  # every file is known, but they are not all of the present series
    EDITED = 13  # a file of the package has contents that neither OpenRLHF nor this tool wrote
    UNKNOWN_VERSION = 14  # no patch folder for the installed OpenRLHF version
    MISSING = 15  # no OpenRLHF found
    BAD_SERIES = 20  # series, manifest and patches contradict each other, or a patch does not apply
    READ_ONLY = 21  # the target is not writable
    LOCKED = 22  # another call held the lock longer than the time-out, or a run uses the environment
    UNSAFE_FILE = 23  # a symbolic link or another file that is not regular
    NO_COMPILE = 24  # a patched file is not valid Python
    CONFLICTS = 30  # refresh: it waits for a decision of the user
    NO_WHEEL = 31  # a wheel is missing, unreadable or of another version
    BAD_WORKTREE = 32  # export, import, refresh: the git worktree is not in the expected form
    NO_GIT = 33  # git is missing


AGAIN = "AGAIN"  # in a next command, it stands for the command that failed


class PatchError(Exception):
    """A problem with its exit code and, if there is one, the next command to type."""

    def __init__(self, code: Exit, message: str, next_command: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.next_command = next_command
