"""How far each released OpenRLHF after the pin has moved away from the series."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patches import anchors, git, refresh
from patches.series import Series
from patches.wheel import Tree, Wheel, order

STACK = ("torch", "transformers", "vllm", "deepspeed", "ray", "peft", "flash-attn")


@dataclass(frozen=True)
class Drift:
    """The series on one version: patches that fit, stops, patches that upstream has, and what it wants."""

    version: str
    fitting: list[str]
    stops: list[str]
    upstream: list[str]
    partly: list[str]  # patches whose header says what upstream does by now
    relies: list[str]  # patches whose anchors upstream changed
    stack: dict[str, str]


def measure(series: Series, old: Tree, new: Wheel) -> Drift:
    """Rebase patch by patch. Where git stops, the patch's side is taken, so that the rest can follow."""
    fitting, stops, upstream = [], [], []
    with tempfile.TemporaryDirectory(prefix="openrlhf-drift-") as name:
        work = Path(name) / "work"
        refresh.set_up(work, series, old, new)
        git.git(work, "checkout", "--quiet", "--detach", "upstream")
        for patch, commit in zip(series.patches, _commits(work), strict=True):
            before = git.git(work, "rev-parse", "HEAD^{tree}")
            if git.attempt(work, "cherry-pick", "--allow-empty", "--keep-redundant-commits", commit).returncode:
                stops.append(patch)
                git.git(work, "cherry-pick", "--abort")
                if git.attempt(work, "cherry-pick", "--keep-redundant-commits", "-Xtheirs", commit).returncode:
                    git.git(work, "add", "--all")
                    git.git(work, "commit", "--quiet", "--allow-empty", "-m", patch)
            elif git.git(work, "rev-parse", "HEAD^{tree}") == before:
                upstream.append(patch)
            else:
                fitting.append(patch)
    relies = [patch.name for patch in series.files() if next(anchors.changes(patch, old, new.tree), None)]
    partly = [claim for patch in series.files() if (claim := _claim(patch, new.version))]
    stack = {name: new.requires[name] or "any" for name in STACK if name in new.requires}
    return Drift(new.version, fitting, stops, upstream, partly, relies, stack)


def _claim(patch: Path, version: str) -> str:
    """Return what a header says that upstream does since a version, if that is not later than the given one."""
    since = re.search(
        r"^Applied-Upstream: *(\d[\w.]*) *(.*(?:\n .*)*)", patch.read_text(encoding="utf-8"), re.MULTILINE
    )
    return f"{patch.stem} {' '.join(since[2].split())}" if since and order(since[1]) <= order(version) else ""


def _commits(work: Path) -> list[str]:
    return git.git(work, "rev-list", "--reverse", "old..series").decode().split()


def table(drifts: list[Drift]) -> Iterator[str]:
    """Yield the lines of the report."""
    for each in drifts:
        total = len(each.fitting) + len(each.stops) + len(each.upstream)
        yield f"{each.version}: {len(each.fitting)} of {total} fit, {len(each.stops)} stop"
        for what, names in (
            ("stop", each.stops),
            ("upstream has", each.upstream),
            ("upstream does in part", each.partly),
            ("relied-on code changed", each.relies),
        ):
            if names:
                yield f"  {what}: {', '.join(name.removesuffix('.patch') for name in names)}"
        yield "  stack: " + ", ".join(f"{name} {wanted}" for name, wanted in each.stack.items())
