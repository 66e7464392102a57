"""python -m grpo.launch MODE [--name NAME] [--stand-in] [--run-dir DIR | --resume DIR|latest [--from-step N]]
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
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from grpo.launch import (
    cost,
    engine_share,
    evaluate_command,
    gpu_memory,
    judge,
    kernels,
    learning_rate,
    micro_batches,
    placement,
    preflight,
    restarts,
    resume,
    run_dir,
    scaling,
    signals,
    stop_rules,
)
from grpo.launch.checks import environment, packages, reward
from grpo.launch.config import Config, resolve
from grpo.launch.hang import HangWatch
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan, describe, make_plan, shortfall
from grpo.launch.refusals import REFUSED, end_restarts, note, refuse, refuse_all
from grpo.launch.restarts import Verdict
from grpo.launch.signals import Signalled
from grpo.launch.supervise import exposure, joined_cluster, last_words, node_check
from grpo.launch.supervise.driver import STOPPED, supervise
from grpo.launch.supervise.watch import End, Saving
from grpo.run.lost_writes import LOSSY
from grpo.run.progress import Progress, find_adapter, way_on
from grpo.run.run_files import RunFiles, read_parts
from grpo.run.save_request import SaveRequest
from grpo.run.saved_steps import saved_steps, step_name
from grpo.settings import choose, flags, misspelt
from grpo.stack import command, machine, seats
from grpo.stack.patch_digest import DIGEST_VARIABLE
from grpo.stack.problem import UserError
from grpo.stack.seats import Seats
from reward import judge_place
from reward.settings import STAND_IN_VARIABLE

_REMEDIES = {errno.ENAMETOOLONG: "give a shorter name", errno.EACCES: "make it readable and writable"}
_REMEDIES |= dict.fromkeys((errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.EFBIG), "restore the file from a copy")
DRIVER = (sys.executable, "-m", "openrlhf.cli.train_ppo_ray")


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
    parser.add_argument("--held", type=int, metavar="FD", help="the run's lock, from the launcher before a restart")
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument("--run-dir", type=Path, default=None, help="a new folder (default: runs/NAME-TIME)")
    folder.add_argument("--resume", metavar="DIR|latest", default=None, help="continue this run")
    parser.add_argument("--from-step", type=int, metavar="N", help="continue from this step instead of the newest")
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
            return end_restarts(Path(options.resume), came.code)
        return came.code


def _is_unread(stream: TextIO) -> bool:
    """Tell whether the other end of a pipe is closed."""
    poller = select.poll()
    poller.register(stream, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _main(options: argparse.Namespace) -> int:
    if options.from_step is not None and not options.resume:
        return refuse(options, UserError("--from-step only applies to a resumed run", "add --resume DIR"))
    if wrong := [*misspelt.find(os.environ), *flags.variable_problems(os.environ)]:
        return refuse_all(options, wrong)
    try:
        machine.number_gpus()
        if options.resume:
            folder = resume.find_run(options.resume, options.name)
            # Take the lock before looking for the newest checkpoint: the run may still be writing one.
            held = options.held
            if held is None and options.mode == "run":
                held = RunFiles(folder).hold()
            config = resume.resolve_resumed(options.flags, folder, options.from_step)
        else:
            folder, held = (options.run_dir or run_dir.default_run_dir(options.name)).absolute(), None
            config = resolve(options.flags, folder)
        config = engine_share.choose(micro_batches.choose(config))
        run_judge = judge.of_run(config, options.stand_in)
    except UserError as error:
        return refuse(options, error)
    plan = make_plan(config)
    if options.mode == "dry-run":
        print(run_dir.show_command(config.argv))
        return 0
    about = [*choose.describe(options.changes, options.config), *_about(plan, config, run_judge)]
    if options.mode == "plan":
        print("\n".join(about), flush=True)
        wrong = [*preflight.problems_anywhere(config), *judge.check_settings(run_judge, config)]
        return refuse_all(options, wrong) if wrong else 0
    if options.mode == "run" and options.resume and (finished := resume.finished(config, plan)):
        print("\n".join(finished))
        return 0
    cluster = _admitted(options, config, plan, folder, run_judge)
    if cluster.problems:
        return refuse_all(options, cluster.problems)
    warnings = [*cluster.warnings, *exposure.warnings(config, folder), *kernels.warnings()]
    warnings += [*misspelt.warnings(os.environ), *environment.describe(config), *learning_rate.warnings(config.args)]
    nodes = joined_cluster.describe(cluster.seats) if cluster.seats else []
    done = resume.complete(config, plan) if options.resume else []
    if options.mode == "check":
        warnings += [f"steps       {line.strip()}" for line in shortfall(plan, config)]
        begin = _where(config, folder) if options.resume else []
        print("\n".join([*begin, *reward.describe(config), *judge.describe(run_judge, config), *nodes, *warnings]))
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
    try:
        judge.prepare(run_judge, folder)
    except UserError as error:
        return refuse(options, error)
    news = warnings + (resume.take_back(config, folder) if options.resume else []) + done
    watch = f"watch       {_in_a_shell('scripts.watch', folder)}  # in a second terminal"
    print("\n".join([f"run directory {folder}", *news, *about, *nodes, watch]), flush=True)
    return run(options, folder, config, plan, run_judge, held, cluster.seats)


def _admitted(
    options: argparse.Namespace, config: Config, plan: Plan, folder: Path, run_judge: RunJudge
) -> joined_cluster.Admission:
    """Make all checks, a restart for ten minutes again and again: what has crashed may still hold memory or GPUs."""
    is_restart = options.held is not None
    until = time.monotonic() + (joined_cluster.ROOM_SECONDS if is_restart else 0.0)
    shown = ""
    while True:
        problems = preflight.problems(config, plan, folder, is_resumed=bool(options.resume))
        # A run goes on without its judge, so a restart does not wait for it.
        problems += [] if is_restart else judge.check(run_judge, config)
        patience = max(0.0, until - time.monotonic())
        cluster = joined_cluster.Admission(problems) if problems else joined_cluster.look(config, patience)
        if cluster.seats and not cluster.problems:
            cluster = replace(cluster, problems=node_check.problems(cluster.seats, config, plan, folder))
        if not cluster.problems or time.monotonic() >= until:
            return cluster
        if (why := cluster.problems[0].what) != shown:
            print(f"waiting      {why}", flush=True)
        shown = why
        time.sleep(joined_cluster.LOOK_AGAIN_SECONDS)


def _about(plan: Plan, config: Config, run_judge: RunJudge) -> list[str]:
    """Return what the plan says of a run."""
    about = [
        packages.describe(),
        *describe(plan, config),
        *_placed(plan, config, run_judge),
        *gpu_memory.describe(config),
    ]
    about += reward.describe(config)
    return [*about, *judge.describe(run_judge, config), *cost.describe(plan, config, run_judge)]


def _placed(plan: Plan, config: Config, run_judge: RunJudge) -> list[str]:
    return scaling.describe(plan, config, run_judge) or placement.describe(config)


def _where(config: Config, folder: Path) -> list[str]:
    """Return where a resumed run would continue, which steps it would set aside, and which settings have changed."""
    newer = ", ".join(step_name(step) for step in resume.newer_steps(config))
    moved = [f"  these newer steps would be moved away: {newer}"] if newer else []
    return [*resume.describe(config), *moved, *resume.describe_changes(resume.changed(config, folder))]


def run(
    options: argparse.Namespace,
    folder: Path,
    config: Config,
    plan: Plan,
    run_judge: RunJudge,
    held: int,
    places: Seats | None = None,
) -> int:
    """Run the trainer in the run directory under the lock `held`; a summary comes last."""
    for left in (STAND_IN_VARIABLE, judge_place.VARIABLE):  # by another run
        os.environ.pop(left, None)
    status = preflight.patch_status()
    stand_in = ["--stand-in"] if run_judge.is_stand_in else []
    again = options.options.split()
    run_dir.write(
        folder, options.name, config, plan, status, stand_in, run_judge.why_off, options.changes, again, options.config
    )
    files = RunFiles(folder, Path(config.args.metrics_dir))
    progress = Progress(files, plan.steps)
    progress.lost.begin(resume.resumed_step(config))
    progress.skip()
    environment = {DIGEST_VARIABLE: status["digest"], "GRPO_RUN_DIR": str(folder)}
    if places:
        environment[seats.VARIABLE] = places.dump()
    if run_judge.settings:
        environment[judge_place.VARIABLE] = judge_place.NAME
    is_finished = False
    try:
        end = _train(files, config, plan, progress, environment, run_judge.stand_in_models, held)
        code, is_finished = end.code, end.code == 0
        if is_finished and progress.lost.count:
            code, end = LOSSY, End(LOSSY)
        verdict = _note_end(files, config, progress, end)
        judge.finish(run_judge, folder)
        print("\n".join([*_summary(files, config, progress, end), *verdict.lines]), flush=True)
        if verdict.wait is not None:
            time.sleep(verdict.wait)
            restarts.go_on(options, folder, held)
    except Signalled as came:
        if not is_finished:  # what is finished stays finished
            code = came.code
            note(files, code)
    if not is_finished:
        print(f"not finished {way_on(folder, Path(config.args.ckpt_path), files.read_config())}", flush=True)
    return code


def _train(
    files: RunFiles,
    config: Config,
    plan: Plan,
    progress: Progress,
    environment: dict[str, str],
    stand_in_models: Sequence[str],
    held: int,
) -> End:
    """Run the trainer under supervision; return how it ended."""
    from grpo.launch.onsets import Onsets  # here, since only a run needs numpy

    args = config.args
    onsets = Onsets(progress, files.read_config())
    folders = {
        "checkpoints": Path(args.ckpt_path),
        "metrics": Path(args.metrics_dir),
        "the run directory": files.folder,
    }
    request = SaveRequest(files.save_request)
    request.close()  # of an earlier part
    end = supervise(
        [*DRIVER, *config.argv],
        ray=None if os.environ.get("RAY_ADDRESS") else plan.ray_head,
        log_dir=files.logs,
        environment=environment,
        progress=lambda: [*progress.poll(), *onsets.new_lines()],
        stand_in_models=stand_in_models,
        inherited=[held],
        folders=folders,
        watch=HangWatch(files, progress, args.hang_minutes, lambda: stop_rules.find(args, progress, folders)),
        saving=Saving(request, args.sigterm_seconds),
    )
    request.close()
    if end.cause and (stop := stop_rules.of_failure(args, progress.step, last_words.read(files.logs))):
        return End(STOPPED, stop)
    return end


def _summary(files: RunFiles, config: Config, progress: Progress, end: End) -> list[str]:
    """Return what a part of the run has reached, and why it failed."""
    save_path, ckpt_path = Path(config.args.save_path), Path(config.args.ckpt_path)
    lines = progress.summary(files.folder, save_path, ckpt_path)
    adapter = find_adapter(save_path, ckpt_path)
    if adapter:
        lines.append(evaluate_command.describe(config, adapter))
    if progress.metrics.rows or progress.evals.rows:
        lines.append(f"report       {_in_a_shell('scripts.report', files.folder)}")
    if end.code == 0:
        lines.append(f"again        {files.command}")
    if end.cause:
        lines += [f"{'stopped' if end.code == STOPPED else 'failed':<12} {end.cause.what}"]
        lines += [f"  remedy     {end.cause.remedy}"] if end.cause.remedy else []
    return lines


def _in_a_shell(module: str, folder: Path) -> str:
    """Return the command that shows a run, as a shell without this checkout's variables reads it."""
    return f"source scripts/env.sh && python -m {module} {shlex.quote(str(folder))}"


def _note_end(files: RunFiles, config: Config, progress: Progress, end: End) -> Verdict:
    """Record how a part of the run ended, and decide whether the run goes on by itself."""
    verdict = Verdict(None, [])
    more: dict[str, Any] = {"seconds": progress.seconds()}
    if progress.lost.count:
        more["lost"] = progress.lost.describe()
    if end.cause:
        saved = saved_steps(config.args.ckpt_path)
        more |= {"cause": end.cause.what, "remedy": end.cause.remedy}
        more |= {"step": progress.step, "saved": saved[-1] if saved else 0}
        if end.code not in (REFUSED, STOPPED):
            verdict = restarts.decide([*read_parts(files.ends), more], config.args.restarts, progress.has_moved())
        more["restart"] = verdict.wait is not None
    return verdict if note(files, end.code, **more) else Verdict(None, [])


if __name__ == "__main__":
    command.print_plainly()
    sys.exit(main())
