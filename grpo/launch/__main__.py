"""python -m grpo.launch SCRIPT_FLAGS -- USER_WORDS: checks, plans, or runs what `train_grpo.sh` asks for.

The callers are `train_grpo.sh`, the command.sh of a run, and a launcher that continues a run after a crash.
"""

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from grpo.flags import parser
from grpo.flags.parser import Asked
from grpo.launch import attempt, gpu_memory, judge, preflight, resume, run_dir, signals
from grpo.launch.attempt import REFUSED, end_restarts
from grpo.launch.checks import environment, reward
from grpo.launch.checks.machine import warn_of_gpus
from grpo.launch.config import Config, resolve
from grpo.launch.flags import make_trainer_words, make_variables
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan, make_plan, shortfall
from grpo.launch.signals import Signalled
from grpo.launch.supervise import joined_cluster, processes
from grpo.run.run_files import RunFiles
from grpo.stack import command, machine
from grpo.stack.checkout import TINY_MODEL
from grpo.stack.command import format_count
from grpo.stack.problem import Problem, UserError
from grpo.train import optimizer_steps

_REMEDIES = {errno.ENAMETOOLONG: "give a shorter name", errno.EACCES: "make it readable and writable"}
_REMEDIES |= dict.fromkeys((errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.EFBIG), "restore the file from a copy")


def main(words: list[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code. The words are those of the process, unless given."""
    words = sys.argv[1:] if words is None else words
    asked = attempt.find_restart(words)
    try:
        signals.raise_them()
        parser.fill(asked, words, lambda run: run_dir.read_asked(run_dir.find_run(run)))
        return _main(asked)
    except UserError as error:
        return _refuse(asked, error)
    except BrokenPipeError:
        poller = select.poll()
        poller.register(sys.stdout, 0)
        if not any(event & select.POLLERR for _, event in poller.poll(0)):
            raise  # of another pipe
        # The reader, such as head, wants no more, nor what is in the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None or error.errno not in _REMEDIES:
            raise
        what = f"{error.filename} cannot be used ({error.strerror})"
        return _refuse(asked, UserError(what, _REMEDIES[error.errno]))
    except Signalled as came:
        print(f"{came.name}: nothing was started", file=sys.stderr)
        return _end(asked, came.code, cause=came.name)


def _refuse(asked: Asked, error: UserError) -> int:
    """Print why nothing is started; return the exit code."""
    print(f"refused: {error}", file=sys.stderr)
    return _end(asked, REFUSED, cause=error.problem.what, remedy=error.problem.remedy)


def _refuse_all(asked: Asked, problems: Sequence[Problem]) -> int:
    """Print all problems; return the exit code."""
    print(f"refused, {format_count(len(problems), 'problem')}:", file=sys.stderr)
    print("\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1)), file=sys.stderr)
    return _end(asked, REFUSED, cause=problems[0].what, remedy=problems[0].remedy)


def _end(asked: Asked, code: int, **more: str) -> int:
    """Return the exit code; a restart also leaves a record, and says how the run continues."""
    return code if asked.held is None or asked.resume is None else end_restarts(Path(asked.resume), code, **more)


def _main(asked: Asked) -> int:
    if asked.tiny and asked.held is None and asked.mode in ("run", "check") and (code := _make_tiny()):
        return code
    folder, held, config = _resolve(asked)
    run_judge, plan = judge.choose_judge(config, asked.tiny), make_plan(config)
    if asked.mode == "dry-run":
        print(run_dir.show_command(config.argv))
        return 0
    which = [f"run         {folder}"] if asked.resume and asked.mode != "run" else []
    described = [*which, *asked.describe(), *preflight.describe(plan, config, run_judge)]
    if asked.mode == "plan":
        print("\n".join(described), flush=True)
        wrong = [*preflight.problems_anywhere(config), *judge.check_settings(run_judge, config)]
        return _refuse_all(asked, wrong) if wrong else 0
    if asked.mode == "run" and asked.resume and (finished := resume.describe_finished(config, plan)):
        print("\n".join(finished))
        return 0
    cluster = _check_admission(asked, config, plan, folder, run_judge)
    if cluster.problems:
        return _refuse_all(asked, cluster.problems)
    warnings = [*cluster.warnings, *warn_of_gpus(), *environment.describe(config)]
    warnings += optimizer_steps.warnings(config.args)
    done = resume.complete(config, plan, resume.resumed_step(config)) if asked.resume else []
    if asked.mode == "check":
        warnings += [f"steps       {line.strip()}" for line in shortfall(plan, config)]
        changes = resume.describe_changes(resume.find_changes(config, folder)) if asked.resume else []
        begin = [*resume.describe(config), *changes] if asked.resume else []
        told = [*which, *asked.describe(), *begin, *reward.describe(config), *judge.describe(run_judge, config)]
        print("\n".join([*told, *cluster.places, *warnings]))
        print("\n".join(done) or "ready: machine, patches, model, data and configuration are fine")
        return 0
    machine.raise_open_files()
    # Problems, samples, judgements and logs are private. Every process of the run inherits this mask.
    os.umask(0o077)
    if held is None:
        folder.mkdir(parents=True, exist_ok=True)
        held = RunFiles(folder).hold()
    news = warnings + (resume.take_back(config, folder) if asked.resume else []) + done
    watch = f"watch       {run_dir.build_shell_command('scripts.watch', str(folder))}  # in a second terminal"
    print("\n".join([f"run directory {folder}", *news, *described, *cluster.places, watch]), flush=True)
    return attempt.run(asked, folder, config, plan, run_judge, held)


def _resolve(asked: Asked) -> tuple[Path, int | None, Config]:
    """Return the run directory, its lock if it is resumed, and the configuration."""
    os.environ.update(make_variables(asked.values))
    machine.number_gpus()
    words, held = make_trainer_words(asked.values), asked.held
    if not asked.resume:
        folder = Path(asked.run_dir or run_dir.default_run_dir(asked)).absolute()
        return folder, held, gpu_memory.choose(resolve(words, folder))
    folder = run_dir.find_run(asked.resume)
    if held is None and asked.mode == "run":
        held = RunFiles(folder).hold()  # before looking for the newest checkpoint: the run may still be writing one
    return folder, held, gpu_memory.choose(resume.resolve_resumed(words, folder))


def _check_admission(
    asked: Asked, config: Config, plan: Plan, folder: Path, run_judge: RunJudge
) -> joined_cluster.Admission:
    """Make all checks. A restart repeats them for up to ten minutes: what crashed may still hold memory or GPUs."""
    is_restart = asked.held is not None
    until = time.monotonic() + (joined_cluster.ROOM_SECONDS if is_restart else 0.0)
    shown = ""
    while True:
        problems = preflight.problems(config, plan, folder, is_resumed=bool(asked.resume))
        # A run continues without its judge, so a restart does not wait for it.
        problems += [] if is_restart else judge.check(run_judge, config)
        cluster = joined_cluster.Admission(problems) if problems else joined_cluster.look(config, folder)
        if not cluster.problems or time.monotonic() >= until:
            return cluster
        if (why := cluster.problems[0].what) != shown:
            print(f"waiting      {why}", flush=True)
        shown = why
        time.sleep(joined_cluster.LOOK_AGAIN_SECONDS)


def _make_tiny() -> int:
    """Make the tiny model and its problems, once and again after their code has changed; return an exit code."""
    bf16, folder = TINY_MODEL / "bf16", str(TINY_MODEL)
    commands = [
        ["scripts.make_tiny_model", "--out", str(TINY_MODEL / "mxfp4"), "--dequantized-out", str(bf16)],
        ["data.prepare", *("--source", "synthetic", "--train-count", "1024", "--eval-count", "256", "--out", folder)],
    ]
    for words in commands:
        quiet = subprocess.DEVNULL if words[0] == "data.prepare" else None
        if code := subprocess.run([sys.executable, "-P", "-m", *words], stdout=quiet, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    command.print_plainly()
    sys.exit(processes.guard(main))
