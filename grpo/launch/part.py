"""One part of a run, from a start or a resume to its end: the trainer under supervision, and what is said of it."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from grpo.flags.parser import Asked
from grpo.launch import evaluate_command, preflight, restarts, resume, run_dir, signals
from grpo.launch.config import Config
from grpo.launch.hang import HangWatch
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.launch.refusals import REFUSED, note
from grpo.launch.restarts import Verdict
from grpo.launch.signals import Signalled
from grpo.launch.supervise import last_words
from grpo.launch.supervise.ray_head import RayHead
from grpo.launch.supervise.supervisor import STOPPED, End, Job, Saving, supervise
from grpo.metrics.parity import PolicyMismatch
from grpo.run.lost_writes import LOSSY
from grpo.run.progress import Progress, describe_continuation, find_adapter
from grpo.run.run_files import RunFiles, read_parts
from grpo.run.save_request import SaveRequest
from grpo.run.saved_steps import saved_steps
from grpo.stack.patch_digest import DIGEST_VARIABLE
from grpo.stack.problem import Problem
from reward import judge_actor
from reward.settings import STAND_IN_VARIABLE

DRIVER = (sys.executable, "-m", "openrlhf.cli.train_ppo_ray")


def run(
    asked: Asked,
    folder: Path,
    config: Config,
    plan: Plan,
    run_judge: RunJudge,
    held: int,
) -> int:
    """Run the trainer in the run directory under the lock `held`; a summary comes last."""
    for left in (STAND_IN_VARIABLE, judge_actor.VARIABLE):  # by another run
        os.environ.pop(left, None)
    status = preflight.patch_status()
    run_dir.write(folder, asked, config, plan, status, run_judge.why_off, run_judge.is_stand_in)
    files = RunFiles(folder, Path(config.args.metrics_dir))
    progress = Progress(files, plan.steps)
    progress.lost.begin(resume.resumed_step(config))
    progress.skip()
    environment = {DIGEST_VARIABLE: status["digest"], "GRPO_RUN_DIR": str(folder)}
    if run_judge.settings:
        environment[judge_actor.VARIABLE] = judge_actor.NAME
    is_finished = False
    try:
        end = _train(files, config, plan, progress, environment, run_judge)
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
            note(files, code, cause=came.name)
    if not is_finished:
        print(f"not finished {describe_continuation(folder, Path(config.args.ckpt_path))}", flush=True)
    return code


def _train(
    files: RunFiles,
    config: Config,
    plan: Plan,
    progress: Progress,
    environment: dict[str, str],
    run_judge: RunJudge,
) -> End:
    """Run the trainer under supervision; return how it ended."""
    from grpo.launch.onsets import Onsets  # here, since only a run needs numpy

    args, onsets = config.args, Onsets(progress, files.read_config())
    folders = {"checkpoints": Path(args.ckpt_path), "metrics": Path(args.metrics_dir)}
    folders["the run directory"] = files.folder
    request = SaveRequest(files.save_request)
    request.close()  # of an earlier part
    head = RayHead(plan.ray_gpus, plan.ray_cpus, plan.object_store_bytes)
    end = supervise(
        Job(
            [*DRIVER, *config.argv],
            files.logs,
            ray=None if os.environ.get("RAY_ADDRESS") else head,
            environment=environment,
            progress=lambda: [*progress.poll(), *onsets.new_lines()],
            stand_in_models=run_judge.stand_in_models,
            folders=folders,
            watch=HangWatch(files, progress, args.hang_minutes),
            saving=Saving(request, args.sigterm_seconds),
        )
    )
    request.close()
    words = last_words.read(files.logs) if end.cause else None
    if words and words.kind == PolicyMismatch.__name__:  # a run that is started again computes the same
        return End(STOPPED, Problem(words.what, words.remedy))
    return end


def _summary(files: RunFiles, config: Config, progress: Progress, end: End) -> list[str]:
    """Return what a part of the run has reached, and why it failed."""
    save_path, ckpt_path = Path(config.args.save_path), Path(config.args.ckpt_path)
    lines = progress.summary(files.folder, save_path, ckpt_path)
    adapter = find_adapter(save_path, ckpt_path)
    if adapter:
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
    """Record how a part of the run ended, and decide whether the run restarts."""
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
    elif end.code > 128:
        more["cause"] = signals.get_name(end.code - 128)
    return verdict if note(files, end.code, **more) else Verdict(None, [])
