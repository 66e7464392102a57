"""Sends the numbers of a run to TensorBoard, Weights & Biases, and Trackio.

The run directory is the record. Each tracker has a thread, so that a slow one does not delay the run. One that fails is
switched off with a warning. Keys come only from the environment.
"""

import functools
import importlib
import importlib.util
import json
import logging
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from grpo.run.run_files import RunFiles
from grpo.stack import secrets
from grpo.stack.checkout import CHECKOUT, requirements
from grpo.stack.json_files import read_json, replace
from grpo.stack.problem import Problem
from grpo.stack.upstream import Arguments

logger = logging.getLogger("openrlhf.grpo.trackers")

Numbers = dict[str, float]  # their names begin with train/ or eval/
Send = Callable[[int, Numbers], None]  # of a global step
Open = Callable[[], AbstractContextManager[Send]]  # starts a tracker, and finishes it

PACKAGES = {"use_tensorboard": "tensorboard", "use_wandb": "wandb", "use_trackio": "trackio"}  # by flag
INSTALL = {"trackio": f"uv pip install --no-deps -r {requirements('trackio.txt').relative_to(CHECKOUT)}"}
LONGEST_END = 60.0  # seconds in which trackers may send the rest at the end of a run


class Trackers:
    """All requested trackers, as one."""

    def __init__(self, opens: Mapping[str, Open] | None = None) -> None:
        self._queues: dict[Thread, SimpleQueue[tuple[int, Numbers] | None]] = {}
        for name, start_tracker in (opens or {}).items():
            rows: SimpleQueue[tuple[int, Numbers] | None] = SimpleQueue()
            thread = Thread(target=_feed, args=(name, start_tracker, rows), name=name, daemon=True)
            self._queues[thread] = rows
            thread.start()

    def log(self, group: str, step: int, numbers: Mapping[str, Any]) -> None:
        """Pass on the numbers of a global step; nested ones become GROUP/NAME/NAME, with "train" or "eval" as GROUP."""
        for rows in self._queues.values():
            rows.put((step, _flat(numbers, group)))

    def close(self) -> None:
        """Let all trackers finish, for LONGEST_END at most."""
        for rows in self._queues.values():
            rows.put(None)
        end = time.monotonic() + LONGEST_END
        for thread in self._queues:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                logger.warning("%s did not finish in %.0f s: its last numbers may be missing", thread.name, LONGEST_END)


def _feed(name: str, start_tracker: Open, rows: SimpleQueue[tuple[int, Numbers] | None]) -> None:
    try:
        with start_tracker() as send:
            while row := rows.get():
                send(*row)
    except Exception as error:  # an external service must not end a run of days
        logger.warning("%s failed and is switched off: %s", name, secrets.redact(repr(error)))


def start(args: Arguments, step: int) -> Trackers:
    """Start the trackers that the arguments ask for, for a run that continues after a global step (0: a new one)."""
    opens: dict[str, Open] = {"tensorboard": functools.partial(_tensorboard, args, step)}
    opens |= {name: functools.partial(_page, name, args) for name in ("wandb", "trackio")}
    return Trackers({name: opens[name] for flag, name in PACKAGES.items() if getattr(args, flag)})


@contextmanager
def _tensorboard(args: Arguments, step: int) -> Iterator[Send]:
    """Write event files; a resumed run removes the steps that it repeats."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(log_dir=args.use_tensorboard, purge_step=step + 1) as writer:

        def send(step: int, numbers: Numbers) -> None:
            for name, value in numbers.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        yield send


@contextmanager
def _page(service: str, args: Arguments) -> Iterator[Send]:
    """Log to the run's page at W&B or Trackio. Trackio has W&B's interface, but knows a run by its name alone.

    A page keeps the steps that a resumed run repeats, so each step is sent once. The run directory has a file with the
    page's id and the last steps.
    """
    is_wandb = service == "wandb"
    file = getattr(RunFiles(Path(args.run_dir)), service)
    page: dict[str, Any] = read_json(file) if file.exists() else {"id": uuid.uuid4().hex}
    replace(file, json.dumps(page))
    shown = {name: value for name, value in vars(args).items() if name != "use_wandb"}  # which may be the key
    options = {"project": args.wandb_project, "resume": "allow", "config": shown}
    if is_wandb:
        options |= {"name": args.wandb_run_name, "id": page["id"], "dir": args.run_dir}
        options |= {"entity": args.wandb_org, "group": args.wandb_group}
    else:
        options["name"] = f"{args.wandb_run_name}-{page['id'][:8]}"
    run = importlib.import_module(service).init(**options)
    if is_wandb:
        run.define_metric("*", step_metric="global_step")  # a step may log twice: train and eval

    def send(step: int, numbers: Numbers) -> None:
        group = next(iter(numbers), "").partition("/")[0]
        if step <= page.get(group, -1):
            return
        page[group] = step
        with suppress(OSError):  # a full disk: a resumed run may send the step twice
            replace(file, json.dumps(page))
        run.log({**numbers, "global_step": step}) if is_wandb else run.log(numbers, step=step)

    yield send
    run.finish()


# What tells whether a tracker can start. W&B starts a service, which another process ends.
_LOG_IN = """
import wandb
is_online = wandb.setup(wandb.Settings(silent=True)).settings.mode in ("online", "shared")
print(not is_online or wandb.login(prompt=False, verify=True))
"""
_TRIES = {"wandb": _LOG_IN, "trackio": "import trackio"}


def problems(args: Arguments) -> Iterator[Problem]:
    """Yield why a requested tracker cannot start: the run would go on without it."""
    for name in (name for flag, name in PACKAGES.items() if getattr(args, flag)):
        install = INSTALL.get(name, "run scripts/setup.sh")
        if not importlib.util.find_spec(name):
            yield Problem(f"--use_{name} needs {name}, which is not installed", install)
            continue
        code = f"import sys; sys.tracebacklimit = 0\n{_TRIES.get(name, '')}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        said = secrets.redact(" ".join((done.stderr if done.returncode else done.stdout).split()))[-300:]
        offline = "set WANDB_MODE=offline: wandb sync sends the files later"
        if done.returncode:
            remedy = f"export another WANDB_API_KEY, or {offline}" if name == "wandb" else install
            yield Problem(f"--use_{name}: {name} fails: {said}", remedy)
        elif name == "wandb" and not said.endswith("True"):
            yield Problem("--use_wandb: W&B has no key", f"export WANDB_API_KEY, run `wandb login`, or {offline}")


def _flat(numbers: Mapping[str, Any], prefix: str) -> Numbers:
    flat: Numbers = {}
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}/{name}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[f"{prefix}/{name}"] = float(value)
    return flat
