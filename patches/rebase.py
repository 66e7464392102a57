"""The upgrade path: a three-way rebase of the series onto another OpenRLHF version.

For every patch, base is the old version before the patch, and ours is the old version after it. Theirs is the new
version with the patches rebased so far.
"""

from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath

from patches import unified
from patches.errors import PatchError
from patches.install import compile_text
from patches.series import Change, Series, Tree, write_folder

Lines = list[bytes]


@dataclass(frozen=True)
class Piece:
    """A run of merged lines: `clean`, or None if base, ours and theirs cannot be reconciled."""

    base: Lines
    ours: Lines
    theirs: Lines
    clean: Lines | None
    starts: tuple[int, int, int]  # index of the piece's first line in base, ours and theirs


def merge3(base: Lines, ours: Lines, theirs: Lines) -> list[Piece]:
    """Merge two descendants of `base`, line by line (diff3).

    Runs that all three share separate the rest. Between two of them the side that changed wins. The same change on both
    sides counts once, and different changes are a conflict.
    """
    to_ours, to_theirs = _matches(base, ours), _matches(base, theirs)
    pieces: list[Piece] = []
    b = o = t = 0
    for at in range(len(base) + 1):
        if at < len(base) and (at not in to_ours or at not in to_theirs):
            continue
        o_at, t_at = to_ours.get(at, len(ours)), to_theirs.get(at, len(theirs))
        if at > b or o_at > o or t_at > t:
            changed = base[b:at], ours[o:o_at], theirs[t:t_at]
            pieces.append(Piece(*changed, _resolve(*changed), (b, o, t)))
        if at < len(base):
            same = [base[at]]
            pieces.append(Piece(same, same, same, same, (at, o_at, t_at)))
        b, o, t = at + 1, o_at + 1, t_at + 1
    return pieces


def _matches(base: Lines, other: Lines) -> dict[int, int]:
    blocks = SequenceMatcher(None, base, other, autojunk=False).get_matching_blocks()
    return {block.a + i: block.b + i for block in blocks for i in range(block.size)}


def _resolve(base: Lines, ours: Lines, theirs: Lines) -> Lines | None:
    if ours in (base, theirs):
        return theirs
    return ours if theirs == base else None


@dataclass(frozen=True)
class Misfit:
    """A hunk of `patch` that does not fit, with each side's lines there and some context."""

    patch: str
    path: str
    reason: str
    base: Lines
    ours: Lines
    theirs: Lines
    base_line: int = 1
    theirs_line: int = 1


@dataclass
class Rebased:
    """The outcome: patches that fit, fitting parts of the others, conflicts, and what upstream already has."""

    fitting: list[Change] = field(default_factory=list)
    partial: list[Change] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)
    upstream: list[str] = field(default_factory=list)


def rebase(series: Series, pristine: dict[str, bytes | None], new: Tree) -> Rebased:
    """Rebase every patch from the old version (`pristine`: its touched files) onto `new`.

    A patch with a misfit is left out, so later patches do not see its lines.
    """
    old, current, result = dict(pristine), dict(new), Rebased()
    for patch in series.patches:
        files: dict[str, tuple[bytes | None, bytes | None]] = {}
        misfits: list[Misfit] = []
        for diff in patch.files:
            ours = diff.apply(old[diff.path], patch.name)
            theirs = current.get(diff.path)
            merged, problems = _merge_file(patch.name, diff.path, old[diff.path], ours, theirs, new)
            misfits += problems
            if merged != theirs:
                files[diff.path] = (theirs, merged)
            old[diff.path] = ours
        change = Change(patch.name, patch.header, files)
        if misfits:
            result.misfits += misfits
            result.partial += [change] if files else []
            continue
        if not files:
            result.upstream.append(patch.name)
            continue
        result.fitting.append(change)
        for path, (_, merged) in files.items():
            current.pop(path, None)
            if merged is not None:
                current[path] = merged
    return result


def _merge_file(
    patch: str, path: str, base: bytes | None, ours: bytes | None, theirs: bytes | None, new: Tree
) -> tuple[bytes | None, list[Misfit]]:
    """Return the merged file and the misfits; theirs stays in the place of a misfit."""
    if theirs == base or ours == theirs:
        return ours, []
    if base is None or ours is None or theirs is None:
        reason = "the new version has this file already"
        if theirs is None:
            alike = [p for p in new if PurePosixPath(p).name == PurePosixPath(path).name]
            reason = "the new version has no such file" + (f"; same name: {', '.join(alike)}" if alike else "")
        elif base is not None:
            reason = "the patch deletes this file, and the new version changes it"
        sides = [unified.split_lines(text or b"") for text in (base, ours, theirs)]
        return theirs, [Misfit(patch, path, reason, sides[0], sides[1], sides[2])]
    sides = [unified.split_lines(text) for text in (base, ours, theirs)]
    pieces = merge3(sides[0], sides[1], sides[2])
    misfits = [_misfit(patch, path, piece, sides) for piece in pieces if piece.clean is None]
    merged = b"".join(b"".join(p.theirs if p.clean is None else p.clean) for p in pieces)
    if not misfits:
        try:
            compile_text(path, merged)
        except PatchError as error:
            return theirs, [Misfit(patch, path, str(error), [], unified.split_lines(merged), [])]
    return merged, misfits


def _misfit(patch: str, path: str, piece: Piece, sides: list[Lines]) -> Misfit:
    around = 3
    shown = [
        lines[max(0, start - around) : start + len(part) + around]
        for lines, start, part in zip(sides, piece.starts, (piece.base, piece.ours, piece.theirs), strict=True)
    ]
    base_line, _, theirs_line = (max(0, start - around) + 1 for start in piece.starts)
    reason = "both sides change these lines"
    return Misfit(patch, path, reason, shown[0], shown[1], shown[2], base_line, theirs_line)


def write_report(out: Path, series: Series, version: str, result: Rebased) -> None:
    """Write the rebased folder: patches, series, manifest, REPORT.md, and partial/ for the misfits."""
    write_folder(out, version, result.fitting)
    for change in result.partial:
        (out / "partial").mkdir(exist_ok=True)
        (out / "partial" / change.name).write_bytes(change.patch().render())
    old = series.manifest.version
    lines = [f"# Patches for OpenRLHF {old} on {version}", ""]
    unfit = list(dict.fromkeys(misfit.patch for misfit in result.misfits))
    for what, names in (
        ("fit", [change.name for change in result.fitting]),
        ("are in the new version already and were dropped", result.upstream),
        ("do not fit and were left out (their fitting hunks are in `partial/`)", unfit),
    ):
        lines += [f"- {len(names)} {what}: {', '.join(names)}" if names else f"- 0 {what}"]
    lines += ["", "## Next", "", *_next_steps(out, version, bool(unfit)), ""]
    for number, misfit in enumerate(result.misfits, 1):
        lines += [f"## {number}. {misfit.patch}: {misfit.path}", "", misfit.reason + ".", ""]
        lines += _block(f"Base ({old}, line {misfit.base_line})", misfit.base)
        lines += _block(f"Ours ({old} with the patch)", misfit.ours)
        lines += _block(
            f"Theirs ({version}, line {misfit.theirs_line} of the file with the fitting patches)",
            misfit.theirs,
        )
    (out / "REPORT.md").write_text("\n".join(lines), encoding="utf-8")


def _next_steps(out: Path, version: str, has_misfits: bool) -> list[str]:
    folder = f"patches/openrlhf-{version}"
    files = " ".join(f"{out}/{name}" for name in ("series", "manifest.json", "*.patch"))
    steps = [f"1. `mkdir {folder} && cp {files} {folder}/`"]
    if has_misfits:
        steps += [
            f"2. `./apply_patches.sh import --wheel WHEEL --to WORKTREE` with the wheel of {version}, "
            "then port each hunk below there, one commit per patch",
            f"3. `./apply_patches.sh export --version {version} --from WORKTREE`",
        ]
    return [*steps, f"{len(steps) + 1}. `./apply_patches.sh`"]


def _block(title: str, lines: Lines) -> list[str]:
    text = b"".join(lines).decode(errors="replace").rstrip("\n")
    fence = "`" * 4
    return [f"{title}:", "", f"{fence}python", *([text] if text else ["# (nothing)"]), fence, ""]
