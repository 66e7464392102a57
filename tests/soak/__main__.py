"""python -m tests.soak --minutes 120 --every 4 --seed 0 --out DIR

Makes one tiny run without a fault, and then tiny runs into which a random fault comes every few minutes. Each run is
continued until it is complete: by itself, or with --resume. Its numbers must equal those of the first one, digit for
digit. Keys that are planted in its environment must be in no file, no command line, and no foreign process.

It needs 6 GB of memory, and root for one of the faults: a small disk that fills. Nothing else may create files under
/dev/shm meanwhile: the soak would count them as left behind.
"""

import argparse
import random
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo.launch.supervise import processes
from grpo.run.run_files import RunFiles
from grpo.stack.json_files import read_rows
from tests.soak import faults, proof, table
from tests.soak.disk import SmallDisk
from tests.soak.faults import Fault
from tests.soak.table import Hit, Report
from tests.soak.tiny_run import START, TinyRun

LOOK_SECONDS, SEARCH_SECONDS = 1.0, 5.0
MOST_RESUMES = 20
IN_START = 0.2  # of the faults; a start may take longer than all steps
SETTLE_SECONDS = 90.0  # the keeper may outlive a launcher that is killed
BASICS = {"HANG_MINUTES": "1.5", "SIGTERM_SECONDS": "60"}


def main() -> int:
    """Make the runs; print and write the tables; return 1 if a run is not as it should be."""
    parser = argparse.ArgumentParser(usage=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=120.0, help="start no further run after this time")
    parser.add_argument("--every", type=float, default=4.0, help="minutes between two faults, on average")
    parser.add_argument("--steps", type=int, default=8, help="global steps of a run")
    parser.add_argument("--seed", type=int, default=0, help="decides faults and their times")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    processes.become_subreaper()
    with _small_disk(options.out.absolute() / "disk") as disk:
        reports = Soak(options, options.out.absolute(), disk).run()
    print(table.write(options.out, reports))
    return 0 if all(report.is_fine() for report in reports) else 1


@contextmanager
def _small_disk(folder: Path) -> Iterator[SmallDisk | None]:
    """Mount a disk for checkpoints; None if this user may not."""
    try:
        disk = SmallDisk(folder)
    except PermissionError as error:
        print(f"no disk is filled: {error}")
        yield None
        return
    try:
        yield disk
    finally:
        disk.close()


class Soak:
    """All runs of a soak, one after the other."""

    def __init__(self, options: argparse.Namespace, out: Path, disk: SmallDisk | None) -> None:
        self._options, self._out, self._disk = options, out, disk
        self._random = random.Random(options.seed)
        self._faults = faults.list_faults(disk)
        self._waiting: list[Fault] = []
        self._keys = {name: f"planted-{secrets.token_hex(16)}" for name in proof.NAMES}
        self._next_fault, self._hit_at, self._may_hit_start = float("inf"), 0.0, False
        self._reports: list[Report] = []

    def run(self) -> list[Report]:
        """Return a report of each run."""
        until = time.monotonic() + 60 * self._options.minutes
        while not self._reports or time.monotonic() < until:
            report = self._run_one(len(self._reports))
            self._reports.append(report)
            table.write(self._out, self._reports)
            verdict = "fine" if report.is_fine() else "NOT FINE"
            print(f"run {report.number}: {len(report.hits)} faults, {verdict}", flush=True)
            if not report.number:
                if not report.is_fine():
                    break  # nothing can be compared with it
                self._plan()
        return self._reports

    def _plan(self) -> None:
        self._next_fault = time.monotonic() + 60 * self._options.every * self._random.uniform(0.5, 1.5)
        self._may_hit_start = self._random.random() < IN_START

    def _run_one(self, number: int) -> Report:
        folder = self._out / f"run_{number}"
        settings = {**BASICS, **self._keys}
        if self._disk:
            settings["CKPT_DIR"] = str(self._disk.folder / f"run_{number}")
        run = TinyRun(folder, self._options.steps, settings)
        report = Report(number, 0.0, is_complete=False)
        try:
            leaks = self._run_until_complete(run, report)
        finally:
            run.kill_everything()
        self._settle(run)
        return self._prove(run, report, leaks)

    def _run_until_complete(self, run: TinyRun, report: Report) -> set[str]:
        """Follow a run, inject faults, and continue it; return where keys were found in processes."""
        leaks: set[str] = set()
        next_search = 0.0
        while run.resumes <= MOST_RESUMES:
            is_running = run.is_running()
            self._follow(run, report)
            if time.monotonic() >= next_search or not is_running:
                leaks |= set(proof.find_in_processes(self._keys.values(), run.list_pids))
                next_search = time.monotonic() + SEARCH_SECONDS
            if not is_running:
                if run.code == 0:
                    break
                self._continue(run, report)
            elif time.monotonic() >= self._next_fault:
                self._inject(run, report)
            time.sleep(LOOK_SECONDS)
        return leaks

    def _inject(self, run: TinyRun, report: Report) -> None:
        if not self._waiting:
            self._waiting = self._random.sample(self._faults, len(self._faults))
        if self._disk:
            self._disk.free()  # a run may wait for it
        phase, step = run.read_phase()
        if phase == START and not self._may_hit_start:
            return
        hit = Hit(self._waiting[0].name, phase, step)
        run.read_news()
        if self._waiting[0].inject(run):
            self._waiting.pop(0)
            report.hits.append(hit)
            self._hit_at = time.time()
            print(f"run {report.number}, step {step}, {phase}: {hit.fault}", flush=True)
            self._plan()

    def _follow(self, run: TinyRun, report: Report) -> None:
        if not report.hits:
            return
        hit = report.hits[-1]
        hit.seen += run.read_news()
        made = [row["time"] for row in run.read_rows() if row["step"] == hit.step and row["time"] > self._hit_at]
        if hit.seconds is None and made:
            hit.seconds = made[0] - self._hit_at

    def _continue(self, run: TinyRun, report: Report) -> None:
        """Continue a run by hand, as its last line says."""
        self._settle(run)
        if report.hits:
            report.hits[-1].by_hand = True
        run.resume()

    def _settle(self, run: TinyRun) -> None:
        """Wait until the keeper has ended what a killed launcher left; free the small disk."""
        if self._disk:
            self._disk.free()
        until = time.monotonic() + SETTLE_SECONDS
        while run.list_processes() and time.monotonic() < until:
            processes.reap()
            time.sleep(LOOK_SECONDS)

    def _prove(self, run: TinyRun, report: Report, leaks: set[str]) -> Report:
        report.minutes = (time.monotonic() - run.started) / 60
        report.is_complete = len(run.read_rows()) == self._options.steps and run.code == 0
        report.left = run.find_left()
        report.leaks = sorted(leaks | set(proof.find_in_files([self._out], self._keys.values())))
        if report.number:
            first, files = RunFiles(self._out / "run_0"), run.files
            for one, other in ((first.metrics, files.metrics), (first.evals, files.evals)):
                report.differences += proof.find_differences(read_rows(one), read_rows(other))
            adapters = [
                self._out / f"run_{each}" / "final" / "adapter_model.safetensors" for each in (0, report.number)
            ]
            if not all(file.is_file() for file in adapters) or not proof.has_same_tensors(*adapters):
                report.differences.append("the final adapter")
        if self._disk and report.number:
            shutil.rmtree(self._disk.folder / f"run_{report.number}", ignore_errors=True)
        return report


if __name__ == "__main__":
    sys.exit(main())
