"""An attempt of a run, from a start or resume to its end: the trainer under supervision, and whether another follows.

After a failure, a new launcher takes this one's place and continues the run as `--resume` by hand does. The history is
in ends.jsonl: a line with ``restart`` is of an attempt that another one followed by itself.
"""

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.checkpoint.on_request import SaveRequest
from grpo.flags.parser import Asked
from grpo.launch import preflight, resume, run_dir, signals
from grpo.launch.config import Config
from grpo.launch.hangs_and_onsets import HangWatch, Onsets
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.launch.signals import Signalled
from grpo.launch.supervise import driver_error
from grpo.launch.supervise.ray_head import RayHead
from grpo.launch.supervise.supervisor import STOPPED, End, Job, supervise
from grpo.run.progress import PolicyMismatch, Progress, describe_continuation, find_adapter
from grpo.run.run_files import LOSSY, RunFiles, read_attempts, saved_steps
from grpo.stack.checkout import DIGEST_VARIABLE
from grpo.stack.problem import Problem, UserError
from reward import gemini, judge_actor
from reward.settings import STAND_IN_VARIABLE

DRIVER = (sys.executable, "-m", "openrlhf.cli.train_ppo_ray")
LAUNCHER = ("-P", "-m", "grpo.launch")
REFUSED = 2  # exit code
FIRST_WAIT, GROWTH = 10.0, 3.0  # seconds: 10, 30, 90
# What a second start cures: a name or port that another program or group of ranks took at the same moment.
_BY_CHANCE = re.compile(r"start again|[Aa]ddress already in use")


def run(asked: Asked, folder: Path, config: Config, plan: Plan, judge: RunJudge, held: int) -> int:
    """Run the trainer in the run directory under the lock `held`; a summary comes last. Return the exit code."""
    for left in (STAND_IN_VARIABLE, judge_actor.VARIABLE):  # by another run
        os.environ.pop(left, None)
    status = preflight.patch_status()
    run_dir.write(folder, asked, config, plan, status, judge)
    files = RunFiles(folder, Path(config.args.metrics_dir))
    progress = Progress(files, plan.steps)
    progress.lost.begin(resume.resumed_step(config))
    progress.skip()
    environment = {DIGEST_VARIABLE: status["digest"], "GRPO_RUN_DIR": str(folder), **_start_judge(judge)}
    is_finished = False
    try:
        end = _train(files, config, plan, progress, environment)
        code, is_finished = end.code, end.code == 0
        if is_finished and progress.lost.count:
            code, end = LOSSY, End(LOSSY)
        wait, lines = _note_end(files, config, progress, end)
        print("\n".join([*_summary(files, config, progress, end), *lines]), flush=True)
        if wait is not None:
            time.sleep(wait)
            _exec_launcher(folder, held)
    except Signalled as came:
        if not is_finished:  # what is finished stays finished
            code = came.code
            note_end(files, code, cause=came.name)
    if not is_finished:
        print(f"not finished {describe_continuation(folder, Path(config.args.ckpt_path))}", flush=True)
    return code


def _start_judge(judge: RunJudge) -> dict[str, str]:
    """Return the variables of a run with a judge. A stand-in for Gemini lives as long as this process."""
    if not judge.settings:
        return {}
    variables = {judge_actor.VARIABLE: judge_actor.NAME}
    if judge.is_stand_in:
        variables[STAND_IN_VARIABLE] = address = gemini.serve_stand_in(judge.settings.chain.models)
        print(f"the judge's stand-in answers at {address}", flush=True)
    return variables


def _train(files: RunFiles, config: Config, plan: Plan, progress: Progress, environment: dict[str, str]) -> End:
    """Run the trainer under supervision; return how it ended."""
    args, onsets, request = config.args, Onsets(progress, files.read_config()), SaveRequest(files.save_request)
    request.close()  # of an earlier attempt
    head = RayHead(plan.ray_gpus, plan.ray_cpus, plan.object_store_bytes)
    places = {"checkpoints": args.ckpt_path, "metrics": args.metrics_dir, "the run directory": files.folder}
    job = Job(
        [*DRIVER, *config.argv],
        files.logs,
        ray=None if os.environ.get("RAY_ADDRESS") else head,
        environment=environment,
        progress=lambda: [*progress.poll(), *onsets.new_lines()],
        folders={name: Path(place) for name, place in places.items()},
        watch=HangWatch(files, progress, args.hang_minutes),
        saving=request if args.sigterm_seconds else None,
        saving_seconds=args.sigterm_seconds,
    )
    end = supervise(job)
    request.close()
    error = driver_error.read(files.logs) if end.cause else None
    if error and error.kind == PolicyMismatch.__name__:  # a run that is started again computes the same
        return End(STOPPED, Problem(error.what, error.remedy))
    return end


def _summary(files: RunFiles, config: Config, progress: Progress, end: End) -> list[str]:
    """Return what an attempt has reached, and why it failed."""
    places = Path(config.args.save_path), Path(config.args.ckpt_path)
    lines = progress.summary(files.folder, *places)
    if adapter := find_adapter(*places):
        lines.append(run_dir.describe_evaluation(config, adapter))
    if progress.metrics.rows or progress.evals.rows:
        for name in ("report", "diagnose"):
            lines.append(f"{name:<13}{run_dir.build_shell_command(f'scripts.{name}', str(files.folder))}")
    if end.code == 0:
        lines.append(f"again        {files.command}")
    if end.cause:
        lines += [f"{'stopped' if end.code == STOPPED else 'failed':<12} {end.cause.what}"]
        lines += [f"  remedy     {end.cause.remedy}"] if end.cause.remedy else []
    return lines


def _note_end(files: RunFiles, config: Config, progress: Progress, end: End) -> tuple[float | None, list[str]]:
    """Record how an attempt ended, and return what :func:`decide` does."""
    wait, lines = None, list[str]()
    more: dict[str, Any] = {"seconds": progress.seconds()}
    if progress.lost.count:
        more["lost"] = progress.lost.describe()
    if end.cause:
        more |= {"cause": end.cause.what, "remedy": end.cause.remedy}
        more |= {"step": progress.step, "saved": max(saved_steps(config.args.ckpt_path), default=0)}
        if end.code not in (REFUSED, STOPPED):
            wait, lines = decide([*read_attempts(files.ends), more], config.args.restarts, progress.has_moved())
        more["restart"] = wait is not None
    elif end.code > 128:
        more["cause"] = signals.get_name(end.code - 128)
    return (wait, lines) if note_end(files, end.code, **more) else (None, [])


def note_end(files: RunFiles, code: int, **more: Any) -> bool:
    """Record how an attempt ended; return whether the disk had room for it."""
    try:
        files.note_end(code, **more)
    except OSError as error:  # it does not change how the run ended
        print(f"{files.ends} was not written: {error}", file=sys.stderr)
        return False
    return True


def decide(ends: Sequence[Mapping[str, Any]], limit: int, has_progressed: bool) -> tuple[float | None, list[str]]:
    """Return after how many seconds a run restarts after its last end (None: not), and what to tell the user.

    Args:
        ends: the lines of ends.jsonl. The last one is of this end and has ``cause``, ``step`` (the last completed one)
            and ``saved`` (the step of the newest checkpoint, or 0).
        limit: restarts without a new checkpoint.
        has_progressed: whether this attempt has logged a step or an evaluation.
    """
    if limit == 0:
        return None, []
    last, chain = ends[-1], list[Mapping[str, Any]]()  # the ends that a restart followed, since a resume by hand
    for end in reversed(ends[:-1]):
        if not end.get("restart"):
            break
        chain.insert(0, end)
    first = [f"first error, at step {chain[0]['step']}: {chain[0]['cause']}"] if chain else []
    if not has_progressed and not chain and not _BY_CHANCE.search(last["cause"]):
        return None, ["not restarting: the run failed before its first step or evaluation"]
    if chain and (chain[-1]["step"], _kind(chain[-1])) == (last["step"], _kind(last)):
        return None, [*first, f"not restarting: the same error occurred again after step {last['step']}"]
    used = sum(end["saved"] == last["saved"] for end in chain)
    if used >= limit:
        return None, [*first, f"not restarting: {used} restarts without a new checkpoint (--restarts {limit})"]
    wait = FIRST_WAIT * GROWTH**used
    origin = f"step {last['saved']}" if last["saved"] else "the start"
    return wait, [*first, f"restarting from {origin} in {wait:.0f} s ({used + 1} of {limit})"]


def _kind(end: Mapping[str, Any]) -> str:
    """Return the cause without process ids and other numbers."""
    return re.sub(r"\d+", "", end["cause"])


def _exec_launcher(folder: Path, held: int) -> None:
    """Replace this process by a launcher that resumes the run and keeps its lock, a file descriptor. Never returns."""
    signals.hold_back()  # an interpreter that starts would die of one without a word
    os.set_inheritable(held, True)
    os.execv(sys.executable, [sys.executable, *LAUNCHER, "--resume", str(folder), "--held", str(held)])


def find_restart(words: Sequence[str]) -> Asked:
    """Return what a launcher hands on to the next one, for a signal that comes before the flags are read."""
    return Asked({}, resume=words[1], held=int(words[3])) if words[2:3] == ["--held"] else Asked({})


def end_restarts(folder: Path, code: int, **more: str) -> int:
    """Record that a restart was not made, and say how the run continues; return the exit code."""
    files = RunFiles(folder)
    note_end(files, code, **more)
    try:
        config = files.read_config()
    except UserError:  # the refusal has named it
        config = {}
    print(f"not finished {describe_continuation(folder, files.find_folder('ckpt_path', config))}", flush=True)
    return code
