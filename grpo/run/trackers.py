"""Experiment trackers besides the run directory: TensorBoard, Weights & Biases, Trackio.

The run directory is the record. A tracker that fails to start ends the run before its first step, since the user asked
for it. A tracker that fails later is switched off with a warning. Keys come only from the environment.
"""

import contextlib
import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from grpo.run.run_files import RunFiles
from grpo.stack import secrets
from grpo.stack.checkout import CHECKOUT, requirements
from grpo.stack.json_files import read_json, replace
from grpo.stack.problem import Problem
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


class Page:
    """A run's own page at a service, which cannot take back a step that a resumed run repeats.

    Its id and the last steps that it got are in a file of the run directory.
    """

    _run: Any  # what the service started

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._content: dict[str, Any] = read_json(file)
        except FileNotFoundError:
            self._content = {"id": uuid.uuid4().hex}
            replace(file, json.dumps(self._content))
        self.id: str = self._content["id"]

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Log the numbers of a global step, once."""
        if self._is_new(next(iter(numbers), "").partition("/")[0], step):
            self._send(step, numbers)

    def _send(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish."""
        self._run.finish()

    def _is_new(self, group: str, step: int) -> bool:
        """Tell whether a step of this group is sent for the first time, and note that it is."""
        if step <= self._content.get(group, -1):
            return False
        self._content[group] = step
        with contextlib.suppress(OSError):  # a full disk: a resumed run may send the step twice
            replace(self._file, json.dumps(self._content))
        return True


class Wandb(Page):
    """Weights & Biases, in the folder wandb of the run directory; a resumed run continues its own page.

    The key comes from WANDB_API_KEY or `wandb login`. WANDB_MODE=offline needs none.
    """

    def __init__(self, args: Arguments, step: int) -> None:
        import wandb

        super().__init__(RunFiles(Path(args.run_dir)).wandb)
        self._run = wandb.init(
            entity=args.wandb_org,
            project=args.wandb_project,
            group=args.wandb_group,
            name=args.wandb_run_name,
            id=self.id,
            resume="allow",
            dir=args.run_dir,
            config=secrets.drop_wandb_key(args),
        )
        self._run.define_metric("*", step_metric="global_step")

    def _send(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log({**numbers, "global_step": step})


class Trackio(Page):
    """Trackio, which keeps its files on this machine or in the hub Space named by TRACKIO_SPACE_ID.

    It knows a run by its name alone, so the name ends with the beginning of the page's id.
    """

    def __init__(self, args: Arguments, step: int) -> None:
        import trackio

        super().__init__(RunFiles(Path(args.run_dir)).trackio)
        self._run = trackio.init(
            project=args.wandb_project,
            name=f"{args.wandb_run_name}-{self.id[:8]}",
            config=secrets.drop_wandb_key(args),
            resume="allow",
        )


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
        self._call_each(lambda member: member.log(step, flat))

    def close(self) -> None:
        """Finish all."""
        self._call_each(lambda member: member.close())

    def _call_each(self, call: Callable[[Tracker], None]) -> None:
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


# W&B itself says where the key comes from. It runs in another process, since it starts a service.
_ASK_WANDB = """
import sys, wandb
settings = wandb.setup(wandb.Settings(silent=True)).settings
online = settings.mode in ("online", "shared")
print(settings.base_url if online else "", not online or wandb.login(prompt=False, verify=False))
"""
_OFFLINE = "set WANDB_MODE=offline: wandb sync sends the files later"


def wandb_problem() -> Problem | None:
    """Return why W&B cannot start: it has no key, or cannot reach its server. Offline it needs neither."""
    done = subprocess.run([sys.executable, "-c", _ASK_WANDB], capture_output=True, text=True)
    if done.returncode:
        return Problem(f"USE_WANDB is 1, but wandb fails: {done.stderr.strip()[-300:]}", "fix it, or set USE_WANDB=0")
    server, _, has_key = done.stdout.strip().splitlines()[-1].rpartition(" ")
    if has_key != "True":
        return Problem("USE_WANDB is 1, but W&B has no key", f"export WANDB_API_KEY, run `wandb login`, or {_OFFLINE}")
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    if server and not any(os.environ.get(name) for name in proxies):
        address = urlsplit(server)
        try:
            socket.create_connection((address.hostname, address.port or 443), timeout=5).close()
        except OSError as error:
            return Problem(f"W&B's server {server} does not answer ({error})", _OFFLINE)
    return None


_TRACKIO = requirements("trackio.txt").relative_to(CHECKOUT)
INSTALL = {"trackio": f"uv pip install --no-deps -r {_TRACKIO}"}  # others are in the locks


def trackio_fault() -> str:
    """Return why Trackio cannot be imported; "" if it can, or is not installed, which another check reports."""
    if not importlib.util.find_spec("trackio"):
        return ""
    done = subprocess.run([sys.executable, "-c", "import trackio"], capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def _flat(numbers: Mapping[str, Any], prefix: str) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}/{name}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[f"{prefix}/{name}"] = float(value)
    return flat
