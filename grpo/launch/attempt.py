"""An attempt of a run, from a start or a resume to its end: the trainer under supervision, and what is said of it."""

import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.checkpoint.on_request import SaveRequest
from grpo.flags.parser import Asked
from grpo.launch import evaluate_command, preflight, restarts, resume, run_dir, signals
from grpo.launch.config import Config
from grpo.launch.hang import HangWatch
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.launch.restarts import Verdict
from grpo.launch.signals import Signalled
from grpo.launch.supervise import driver_error
from grpo.launch.supervise.ray_head import RayHead
from grpo.launch.supervise.supervisor import STOPPED, End, Job, supervise
from grpo.metrics.parity import PolicyMismatch
from grpo.run.lost_writes import LOSSY
from grpo.run.progress import Progress, describe_continuation, find_adapter
from grpo.run.run_files import RunFiles, read_attempts, saved_steps
from grpo.stack.patch_digest import DIGEST_VARIABLE
from grpo.stack.problem import Problem
from reward import gemini, judge_actor
from reward.settings import STAND_IN_VARIABLE

DRIVER = (sys.executable, "-m", "openrlhf.cli.train_ppo_ray")
logger = logging.getLogger(__name__)


def run(asked: Asked, folder: Path, config: Config, plan: Plan, run_judge: RunJudge, held: int) -> int:
    """Run the trainer in the run directory under the lock `held`; a summary comes last."""
    for left in (STAND_IN_VARIABLE, judge_actor.VARIABLE):  # by another run
        os.environ.pop(left, None)
    status = preflight.patch_status()
    run_dir.write(folder, asked, config, plan, status, run_judge.why_off, run_judge.is_stand_in)
    files = RunFiles(folder, Path(config.args.metrics_dir))
    progress = Progress(files, plan.steps)
    progress.lost.begin(resume.resumed_step(config))
    progress.skip()
    environment = {DIGEST_VARIABLE: status["digest"], "GRPO_RUN_DIR": str(folder), **_start_judge(run_judge)}
    is_finished = False
    try:
        end = _train(files, config, plan, progress, environment)
        code, is_finished = end.code, end.code == 0
        if is_finished and progress.lost.count:
            code, end = LOSSY, End(LOSSY)
        verdict = _note_end(files, config, progress, end)
        print("\n".join([*_summary(files, config, progress, end), *verdict.lines]), flush=True)
        if verdict.wait is not None:
            time.sleep(verdict.wait)
            restarts.exec_launcher(folder, held)
    except Signalled as came:
        if not is_finished:  # what is finished stays finished
            code = came.code
            restarts.note_end(files, code, cause=came.name)
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
    end = supervise(
        Job(
            [*DRIVER, *config.argv],
            files.logs,
            ray=None if os.environ.get("RAY_ADDRESS") else head,
            environment=environment,
            progress=lambda: [*progress.poll(), *onsets.new_lines()],
            folders={
                "checkpoints": Path(args.ckpt_path),
                "metrics": Path(args.metrics_dir),
                "the run directory": files.folder,
            },
            watch=HangWatch(files, progress, args.hang_minutes),
            saving=request,
            saving_seconds=args.sigterm_seconds,
        )
    )
    request.close()
    error = driver_error.read(files.logs) if end.cause else None
    if error and error.kind == PolicyMismatch.__name__:  # a run that is started again computes the same
        return End(STOPPED, Problem(error.what, error.remedy))
    return end


class Onsets:
    """What the diagnosis finds while a run is going, once per onset.

    Args:
        progress: of the run; findings in the steps that it already holds count as reported.
        config: config.json.
    """

    def __init__(self, progress: Progress, config: Mapping[str, Any]) -> None:
        from grpo.diagnosis.diagnose import Monitor  # here, since only a run needs numpy

        self._progress, self._monitor, self._seen = progress, Monitor(config), 0
        self.new_lines()

    def new_lines(self) -> list[str]:
        """Return a line for every new onset. Computes nothing until another step or evaluation arrives."""
        rows, evals = self._progress.metrics.rows, self._progress.evals.rows
        if len(rows) + len(evals) == self._seen:
            return []
        self._seen = len(rows) + len(evals)
        try:
            return [f"! {finding.headline()}" for finding in self._monitor.new_onsets(rows, evals)]
        except Exception as error:  # a faulty rule must not stop the run
            logger.warning("the diagnosis failed after step %s: %s", self._progress.step, error)
            return []


def _summary(files: RunFiles, config: Config, progress: Progress, end: End) -> list[str]:
    """Return what an attempt has reached, and why it failed."""
    save_path, ckpt_path = Path(config.args.save_path), Path(config.args.ckpt_path)
    lines = progress.summary(files.folder, save_path, ckpt_path)
    if adapter := find_adapter(save_path, ckpt_path):
        lines.append(evaluate_command.describe(config, adapter))
    if progress.metrics.rows or progress.evals.rows:
        lines.append(f"report       {evaluate_command.build_shell_command('scripts.report', str(files.folder))}")
    if end.code == 0:
        lines.append(f"again        {files.command}")
    if end.cause:
        lines += [f"{'stopped' if end.code == STOPPED else 'failed':<12} {end.cause.what}"]
        lines += [f"  remedy     {end.cause.remedy}"] if end.cause.remedy else []
    return lines


def _note_end(files: RunFiles, config: Config, progress: Progress, end: End) -> Verdict:
    """Record how an attempt ended, and decide whether another one follows."""
    verdict = Verdict(None, [])
    more: dict[str, Any] = {"seconds": progress.seconds()}
    if progress.lost.count:
        more["lost"] = progress.lost.describe()
    if end.cause:
        saved = saved_steps(config.args.ckpt_path)
        more |= {"cause": end.cause.what, "remedy": end.cause.remedy}
        more |= {"step": progress.step, "saved": saved[-1] if saved else 0}
        if end.code not in (restarts.REFUSED, STOPPED):
            verdict = restarts.decide([*read_attempts(files.ends), more], config.args.restarts, progress.has_moved())
        more["restart"] = verdict.wait is not None
    elif end.code > 128:
        more["cause"] = signals.get_name(end.code - 128)
    return verdict if restarts.note_end(files, end.code, **more) else Verdict(None, [])
