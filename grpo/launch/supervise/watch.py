"""What the supervisor asks during a run, and what it says about the end."""

from dataclasses import dataclass

from grpo.run.save_request import SaveRequest
from grpo.stack.problem import Problem


class Watch:
    """Looks at a run from outside; this one sees nothing. See :class:`grpo.launch.hang.HangWatch`."""

    def describe_wait(self) -> str:
        """Return what the run waits for, for the line that follows a quiet minute."""
        return "waiting for the driver"

    def hang(self) -> Problem | None:
        """Return what hangs; None if nothing does."""
        return None

    def has_new_steps(self) -> bool:
        """Return whether a step was completed in this part of the run, so that saving can be worth the wait."""
        return True


@dataclass(frozen=True)
class Saving:
    """How to ask the trainer for a checkpoint before the run ends, and how many seconds it gets; 0 asks for none."""

    request: SaveRequest
    seconds: float


@dataclass(frozen=True)
class End:
    """How a run ended.

    Attributes:
        code: the driver's exit code; 128 + n if signal n ended the driver or the launcher; 1 if a service failed.
        cause: why it failed; None if it did not, or if a signal to the launcher ended it.
    """

    code: int
    cause: Problem | None = None
