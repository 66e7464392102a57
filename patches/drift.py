"""How far each released OpenRLHF after the pin has moved away from the series."""

import re
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from patches import anchors, git, refresh
from patches.series import Series
from patches.wheel import Tree, Wheel, order

STACK = ("torch", "transformers", "vllm", "deepspeed", "ray", "peft", "flash-attn")


@dataclass
class Drift:
    """The series on one version: patches that fit, stops, patches that upstream has, and what it wants."""

    version: str
    stack: dict[str, str]
    fitting: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    upstream: list[str] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)  # patches whose header says what upstream does by now
    relies: list[str] = field(default_factory=list)  # patches whose anchors this release changed, with these
    changes: list[tuple[str, str]] = field(default_factory=list)  # each of these anchors, with the difference


def measure(series: Series, old: Tree, new: Wheel, previous: Tree) -> Drift:
    """Rebase patch by patch. Where git stops, the patch's side is taken, so that the rest can follow.

    `old` is the package of the series, `previous` that of the release before `new`.
    """
    wanted = new.requires()
    drift = Drift(new.version, {name: wanted[name] for name in STACK if name in wanted})
    with tempfile.TemporaryDirectory(prefix="openrlhf-drift-") as name:
        work = Path(name) / "work"
        refresh.set_up(work, series, Wheel(series.version, old, ""), new)
        git.git(work, "checkout", "--quiet", "--detach", "upstream")
        for patch, commit in zip(series.patches, git.lines(work, "rev-list", "--reverse", "old..series"), strict=True):
            before = git.git(work, "rev-parse", "HEAD^{tree}")
            if git.attempt(work, "cherry-pick", "--allow-empty", "--keep-redundant-commits", commit).returncode:
                drift.stops.append(patch)
                git.git(work, "cherry-pick", "--abort")
                if git.attempt(work, "cherry-pick", "--keep-redundant-commits", "-Xtheirs", commit).returncode:
                    git.git(work, "add", "--all")
                    git.git(work, "commit", "--quiet", "--allow-empty", "-m", patch)
            elif git.git(work, "rev-parse", "HEAD^{tree}") == before:
                drift.upstream.append(patch)
            else:
                drift.fitting.append(patch)
    for file in series.files():
        changes = list(anchors.changes(file, previous, new.tree))
        if changed := [anchor.rpartition(": ")[2] for anchor, _ in changes]:
            drift.relies.append(f"{file.stem} ({', '.join(dict.fromkeys(changed))})")
        drift.changes = list(dict.fromkeys([*drift.changes, *changes]))
        since = re.search(r"^Applied-Upstream: *(\d[\w.]*) *(.*(?:\n .*)*)", file.read_text(encoding="utf-8"), re.M)
        if since and order(since[1]) <= order(new.version):
            drift.partly.append(f"{file.stem} {' '.join(since[2].split())}")
    return drift


def table(drifts: list[Drift], with_changes: bool) -> Iterator[str]:
    """Yield the lines of the report, if asked with what each release changed in the code that patches rely on."""
    for each in drifts:
        total = len(each.fitting) + len(each.stops) + len(each.upstream)
        yield f"{each.version}: {len(each.fitting)} of {total} fit, {len(each.stops)} stop"
        for what, names in (
            ("stop", each.stops),
            ("upstream has", each.upstream),
            ("upstream does in part", each.partly),
            ("relied-on code changed in this release", each.relies),
        ):
            if names:
                yield f"  {what}: {', '.join(name.removesuffix('.patch') for name in names)}"
        yield "  stack: " + ", ".join(f"{name} {wanted}" for name, wanted in each.stack.items())
        for anchor, difference in each.changes if with_changes else ():
            yield f"  {anchor}\n{textwrap.indent(difference, '    ')}"
