"""Experiment trackers besides the run directory: TensorBoard, Weights & Biases, Trackio.

The run directory is the record. A tracker that fails to start ends the run before its first step, since the user asked
for it. A tracker that fails later is switched off with a warning. Keys come only from the environment.
"""

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from grpo.stack import secrets
from grpo.stack.upstream.arguments import Arguments

logger = logging.getLogger("openrlhf.grpo.trackers")


class Tracker(Protocol):
    """One service."""

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Log the numbers of a global step; their names begin with train/ or eval/."""

    def close(self) -> None:
        """Finish; nothing is logged after it."""


class TensorBoard:
    """Event files in ``--use_tensorboard``; a resumed run removes the steps that it repeats."""

    def __init__(self, args: Arguments, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=args.use_tensorboard, purge_step=step + 1)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Log the numbers of a global step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Finish."""
        self._writer.close()


class Wandb:
    """Weights & Biases, with WANDB_API_KEY; a resumed run continues its own page."""

    def __init__(self, args: Arguments, step: int) -> None:
        import wandb

        self._run = wandb.init(
            entity=args.wandb_org,
            project=args.wandb_project,
            group=args.wandb_group,
            name=args.wandb_run_name,
            id=args.wandb_run_name,
            resume="allow",
            config=secrets.without_wandb_key(args),
        )
        self._run.define_metric("*", step_metric="global_step")

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Log the numbers of a global step."""
        self._run.log({**numbers, "global_step": step})

    def close(self) -> None:
        """Finish."""
        self._run.finish()


class Trackio:
    """Trackio, which keeps its files on this machine or in the hub Space named by TRACKIO_SPACE_ID."""

    def __init__(self, args: Arguments, step: int) -> None:
        import trackio

        config = secrets.without_wandb_key(args)
        self._run = trackio.init(project=args.wandb_project, name=args.wandb_run_name, config=config, resume="allow")

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Log the numbers of a global step."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish."""
        self._run.finish()


# Flag, package, tracker.
KNOWN = (
    ("use_tensorboard", "tensorboard", TensorBoard),
    ("use_wandb", "wandb", Wandb),
    ("use_trackio", "trackio", Trackio),
)


class Trackers:
    """All requested trackers, as one.

    Args:
        members: the started trackers.
    """

    def __init__(self, members: Sequence[Tracker] = ()) -> None:
        self._members = list(members)

    def log(self, group: str, step: int, numbers: Mapping[str, Any]) -> None:
        """Pass on the numbers of a global step; nested ones become GROUP/NAME/NAME.

        Args:
            group: "train" or "eval".
        """
        flat = _flat(numbers, group)
        self._each(lambda member: member.log(step, flat))

    def close(self) -> None:
        """Finish all."""
        self._each(lambda member: member.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for member in list(self._members):
            try:
                call(member)
            except Exception as error:  # an external service must not end a run of days
                self._members.remove(member)
                logger.warning("%s failed and is switched off: %r", type(member).__name__, error)


def start(args: Arguments, step: int) -> Trackers:
    """Start the trackers that the arguments ask for.

    Args:
        step: the global step after which the run continues, 0 for a new one.
    """
    return Trackers([tracker(args, step) for flag, _, tracker in KNOWN if getattr(args, flag)])


def missing_packages(args: Arguments) -> list[tuple[str, str]]:
    """Return flag and package of each requested tracker that is not installed."""
    return [(flag, name) for flag, name, _ in KNOWN if getattr(args, flag) and not importlib.util.find_spec(name)]


def _flat(numbers: Mapping[str, Any], prefix: str) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}/{name}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[f"{prefix}/{name}"] = float(value)
    return flat
