"""python -m grpo.launch MODE [--name NAME] [--stand-in] [--run-dir DIR | --resume DIR|latest]
    -- FLAGS

FLAGS are OpenRLHF's; of one that is given twice, the last value wins. MODE is run, check, plan or dry-run. Settings of
reward and environment are GRPO_* variables. The callers are `train_grpo.sh`, by way of grpo.launch.recipe, and the
command.sh of a run.
"""

import argparse
import errno
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from grpo.launch import (
    cost,
    evaluate_command,
    gpu_memory,
    judge,
    part,
    placement,
    preflight,
    resume,
    run_dir,
    signals,
)
from grpo.launch.checks import environment, packages, reward
from grpo.launch.config import Config, resolve
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan, describe, make_plan, shortfall
from grpo.launch.refusals import end_restarts, refuse, refuse_all
from grpo.launch.signals import Signalled
from grpo.launch.supervise import guard, joined_cluster
from grpo.run import own_runs
from grpo.run.run_files import RunFiles
from grpo.settings import choose, flags, misspelt
from grpo.stack import command, machine
from grpo.stack.problem import UserError
from grpo.train import optimizer_steps

_REMEDIES = {errno.ENAMETOOLONG: "give a shorter name", errno.EACCES: "make it readable and writable"}
_REMEDIES |= dict.fromkeys((errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.EFBIG), "restore the file from a copy")


def arguments(words: list[str]) -> argparse.Namespace:
    """Return our own options; `flags` are the words after `--`."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m grpo.launch", usage=__doc__)
    parser.add_argument("mode", choices=["run", "check", "plan", "dry-run"])
    parser.add_argument("--name", default="run", help="first part of the run directory's name")
    parser.add_argument(
        "--stand-in", action="store_true", help="if there is no key, start a local server in place of the judge"
    )
    parser.add_argument(
        "--options", default="", help="options of train_grpo.sh that a resumed run needs again, separated by blanks"
    )
    parser.add_argument("--changes", type=json.loads, default={}, help="settings that the user changed, as JSON")
    parser.add_argument("--config", type=json.loads, default={}, help="settings of --config, as JSON")
    parser.add_argument("--script", type=json.loads, default=[], help="lines about edits of train_grpo.sh, as JSON")
    parser.add_argument("--held", type=int, metavar="FD", help="the run's lock, from the launcher before a restart")
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument("--run-dir", type=Path, default=None, help="a new folder (default: runs/NAME-TIME)")
    folder.add_argument("--resume", metavar="DIR|latest", default=None, help="continue this run")
    split = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:split])
    options.flags = words[split + 1 :]
    return options


def main(words: list[str] | None = None) -> int:
    """Run one of the modes; return the exit code. The words are those of the process, unless given."""
    options = arguments(sys.argv[1:] if words is None else words)
    try:
        signals.raise_them()
        return _main(options)
    except BrokenPipeError:
        if not _is_unread(sys.stdout):
            raise
        # The reader, such as head, wants no more. Nor does it want what is in the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None or error.errno not in _REMEDIES:
            raise
        what = f"{error.filename} cannot be used ({error.strerror})"
        return refuse(options, UserError(what, _REMEDIES[error.errno]))
    except Signalled as came:
        print(f"{came.name}: nothing was started", file=sys.stderr)
        if options.held is not None:
            return end_restarts(Path(options.resume), came.code, cause=came.name)
        return came.code


def _is_unread(stream: TextIO) -> bool:
    """Tell whether the other end of a pipe is closed."""
    poller = select.poll()
    poller.register(stream, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _main(options: argparse.Namespace) -> int:
    if wrong := [*misspelt.find(os.environ), *flags.variable_problems(os.environ)]:
        return refuse_all(options, wrong)
    try:
        machine.number_gpus()
        if options.resume:
            folder = run_dir.find_run(options.resume)
            # Take the lock before looking for the newest checkpoint: the run may still be writing one.
            held = options.held
            if held is None and options.mode == "run":
                held = RunFiles(folder).hold()
            config = resume.resolve_resumed(options.flags, folder)
        else:
            folder, held = (options.run_dir or run_dir.default_run_dir(options.name)).absolute(), None
            config = resolve(options.flags, folder)
        config = gpu_memory.choose(config)
        run_judge = judge.choose_judge(config, options.stand_in)
    except UserError as error:
        return refuse(options, error)
    plan = make_plan(config)
    if options.mode == "dry-run":
        print(run_dir.show_command(config.argv))
        return 0
    about = [*options.script, *choose.describe(options.changes, options.config), *_about(plan, config, run_judge)]
    if options.mode == "plan":
        print("\n".join(about), flush=True)
        wrong = [*preflight.problems_anywhere(config), *judge.check_settings(run_judge, config)]
        return refuse_all(options, wrong) if wrong else 0
    if options.mode == "run" and options.resume and (finished := resume.describe_finished(config, plan)):
        print("\n".join(finished))
        return 0
    cluster = _check_admission(options, config, plan, folder, run_judge)
    if cluster.problems:
        return refuse_all(options, cluster.problems)
    warnings = [*cluster.warnings, *placement.warnings()]
    warnings += [*misspelt.warnings(os.environ), *environment.describe(config)]
    warnings += optimizer_steps.warnings(config.args)
    done = resume.complete(config, plan, resume.resumed_step(config)) if options.resume else []
    if options.mode == "check":
        warnings += [f"steps       {line.strip()}" for line in shortfall(plan, config)]
        begin = _describe_resumption(config, folder) if options.resume else []
        told = [*options.script, *begin, *reward.describe(config), *judge.describe(run_judge, config)]
        print("\n".join([*told, *cluster.places, *warnings]))
        print("\n".join(done) or "ready: machine, patches, model, data and configuration are fine")
        return 0
    machine.raise_open_files()
    # Problems, samples, judgements and logs are private. Every process of the run inherits this mask.
    os.umask(0o077)
    if held is None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held = RunFiles(folder).hold()
        except UserError as error:
            return refuse(options, error)
    named = options.config | {name: value for name, (value, _) in options.changes.items()}
    own_runs.record(folder, named | {name: getattr(config.args, flag) for name, flag in own_runs.PLACES.items()})
    news = warnings + (resume.take_back(config, folder) if options.resume else []) + done
    watch = f"watch       {evaluate_command.build_shell_command('scripts.watch', str(folder))}  # in a second terminal"
    print("\n".join([f"run directory {folder}", *news, *about, *cluster.places, watch]), flush=True)
    return part.run(options, folder, config, plan, run_judge, held)


def _check_admission(
    options: argparse.Namespace, config: Config, plan: Plan, folder: Path, run_judge: RunJudge
) -> joined_cluster.Admission:
    """Make all checks. A restart repeats them for up to ten minutes: what crashed may still hold memory or GPUs."""
    is_restart = options.held is not None
    until = time.monotonic() + (joined_cluster.ROOM_SECONDS if is_restart else 0.0)
    shown = ""
    while True:
        problems = preflight.problems(config, plan, folder, is_resumed=bool(options.resume))
        # A run continues without its judge, so a restart does not wait for it.
        problems += [] if is_restart else judge.check(run_judge, config)
        cluster = joined_cluster.Admission(problems) if problems else joined_cluster.look(config, folder)
        if not cluster.problems or time.monotonic() >= until:
            return cluster
        if (why := cluster.problems[0].what) != shown:
            print(f"waiting      {why}", flush=True)
        shown = why
        time.sleep(joined_cluster.LOOK_AGAIN_SECONDS)


def _about(plan: Plan, config: Config, run_judge: RunJudge) -> list[str]:
    """Return what the plan says of a run."""
    return [
        packages.describe(),
        *describe(plan, config),
        *placement.describe(config),
        *gpu_memory.describe(config),
        *reward.describe(config),
        *judge.describe(run_judge, config),
        *cost.describe(plan, config, run_judge),
    ]


def _describe_resumption(config: Config, folder: Path) -> list[str]:
    """Return where a resumed run would continue, and which settings have changed."""
    return [*resume.describe(config), *resume.describe_changes(resume.find_changes(config, folder))]


if __name__ == "__main__":
    command.print_plainly()
    sys.exit(guard.guard(main))
