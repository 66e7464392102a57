"""The result of a soak, as Markdown and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Hit:
    """A fault that hit a run.

    Attributes:
        fault: its name.
        phase, step: what the run was doing.
        seen: what the launcher printed of it.
        seconds: until the step that it hit was complete.
        by_hand: whether the run had to be continued with --resume; else it went on by itself.
    """

    fault: str
    phase: str
    step: int
    seen: list[str] = field(default_factory=list)
    seconds: float | None = None
    by_hand: bool = False


@dataclass
class Report:
    """A run of a soak: the faults that hit it, and what is proven.

    Attributes:
        number: of the run; 0 is the one without faults.
        minutes: from its start to its end.
        differences: from the numbers of run 0; [] if there is none.
        left: what it left behind.
        leaks: where a planted key was found.
        is_complete: whether it made all its steps.
    """

    number: int
    minutes: float
    is_complete: bool
    hits: list[Hit] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)

    def is_fine(self) -> bool:
        """Return whether the run is complete and equal, and left nothing."""
        return self.is_complete and not (self.differences or self.left or self.leaks)


def write(folder: Path, reports: Sequence[Report]) -> str:
    """Write soak.json and soak.md; return the latter."""
    (folder / "soak.json").write_text(json.dumps([asdict(report) for report in reports], indent=1) + "\n")
    text = format_markdown(reports)
    (folder / "soak.md").write_text(text)
    return text


def format_markdown(reports: Sequence[Report]) -> str:
    """Return a line for each fault, and one for each run."""
    rows = [_format_row("run", "fault", "phase", "what the user saw", "went on", "seconds"), "|" + "---|" * 6]
    for report in reports:
        for hit in report.hits:
            seen = "; ".join(f"`{line}`" for line in hit.seen[:3]) or "nothing"
            how = "with `--resume`" if hit.by_hand else "by itself"
            seconds = "-" if hit.seconds is None else f"{hit.seconds:.0f}"
            rows.append(_format_row(report.number, hit.fault, f"step {hit.step}: {hit.phase}", seen, how, seconds))
    rows += ["", _format_row("run", "minutes", "faults", "all steps", "numbers", "left behind", "keys found")]
    rows += ["|" + "---|" * 7]
    for report in reports:
        cells = (
            *(report.number, f"{report.minutes:.1f}", len(report.hits), "yes" if report.is_complete else "NO"),
            *(
                _join_found(report.differences, "equal"),
                _join_found(report.left, "nothing"),
                _join_found(report.leaks, "nowhere"),
            ),
        )
        rows.append(_format_row(*cells))
    bad = [report.number for report in reports if not report.is_fine()]
    hits = sum(len(report.hits) for report in reports)
    verdict = f"not fine: runs {', '.join(map(str, bad))}" if bad else "all complete and equal, and nothing is left"
    return "\n".join([*rows, "", f"{len(reports)} runs, {hits} faults: {verdict}", ""])


def _format_row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _join_found(found: Sequence[str], nothing: str) -> str:
    return "; ".join([*found[:2], *([f"and {len(found) - 2} more"] if len(found) > 2 else [])]) or nothing
