"""Command line of the patch tool: `./apply_patches.sh` or `python -m patches`."""

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from patches import author, install, manifest, rebase, state, unified, wheel
from patches.errors import Exit, PatchError
from patches.manifest import PACKAGE, Manifest, folder, known_versions
from patches.series import Series, Tree

COMMANDS = {
    "apply": "apply the whole series; a second time changes nothing (default)",
    "status": "show what is applied; the exit code is the state",
    "revert": "restore the pristine files, byte for byte",
    "verify": "check hashes, series, manifest and patches, and that every patched file compiles",
    "diff": "print the difference between the pristine and the installed files",
    "refresh": "rebase the series onto another OpenRLHF version, into a separate folder",
    "export": "authors: write the commits of a git worktree as patches",
    "import": "authors: create that git worktree from the pristine package and the series",
}
FLAGS = {  # flag -> the commands that take it
    "target": {"apply", "status", "revert", "verify", "diff", "refresh", "import"},
    "version": set(COMMANDS),
    "json": set(COMMANDS),
    "dry_run": {"apply", "revert"},
    "wait": {"apply", "revert"},
    "wheel": {"apply", "revert", "diff", "refresh", "import"},
    "from_wheel": {"refresh"},
    "to": {"refresh", "import"},
    "from": {"export"},
    "out": {"refresh", "export"},
}
EXIT_CODES = "exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (see `Exit`)."""
    parser = _parser()
    options = parser.parse_args(argv)
    for flag, commands in FLAGS.items():
        if getattr(options, flag) and options.command not in commands:
            parser.error(f"--{flag.replace('_', '-')} cannot be combined with {options.command}")
    for command, flag in (("refresh", "to"), ("import", "to"), ("export", "from")):
        if options.command == command and not getattr(options, flag):
            parser.error(f"{command} needs --{flag}")
    try:
        code, report, text = RUN[options.command](options)
    except PatchError as error:
        code, text = error.code, ""
        report = {"code": int(code), "error": str(error), "next": error.next_command}
        if code in (Exit.MISSING, Exit.UNKNOWN_VERSION):
            report["state"] = "missing" if code == Exit.MISSING else "unknown version"
        if not options.json:
            print(f"error: {error}", file=sys.stderr)
            if error.next_command:
                print(f"next: {error.next_command}", file=sys.stderr)
    if options.json:
        print(json.dumps(report, indent=2))
    elif text:
        print(text)
    return int(code)


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:9}{what}" for name, what in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="./apply_patches.sh",
        description=f"Version-pinned patches on the installed OpenRLHF.\n\n{listing}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("command", nargs="?", default="apply", choices=COMMANDS, metavar="COMMAND")
    add("--target", type=Path, metavar="DIR", help="the openrlhf package (default: the one installed in this Python)")
    add("--version", metavar="V", help="OpenRLHF's version (default: the one installed next to the target)")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--dry-run", action="store_true", help="build and compile, but change nothing")
    add("--wait", type=float, metavar="S", help="seconds to wait for another call on the same target (default 60)")
    add(
        "--wheel",
        type=Path,
        metavar="FILE",
        help="take pristine files (refresh: those of the new version) from this wheel",
    )
    add("--from-wheel", type=Path, metavar="FILE", help="refresh: wheel of the old version")
    add("--to", metavar="V|DIR", help="refresh: the new version; import: the folder to make")
    add("--from", metavar="DIR", help="export: the git worktree")
    add("--out", type=Path, metavar="DIR", help="refresh, export: the folder to write")
    return parser


def _target(options: argparse.Namespace) -> tuple[Path, str]:
    target = state.check_target(options.target or state.find_target())
    return target, options.version or state.installed_version(target)


def _wheel_tree(options: argparse.Namespace, version: str) -> Tree | None:
    return wheel.read_wheel(options.wheel, version)[1] if options.wheel else None


def _describe(status: state.Status) -> str:
    lines = [f"{status.message}: OpenRLHF {status.version} in {status.target}"]
    if status.state not in ("applied", "pristine"):
        for record in status.files:
            lines.append(f"  {record.path}: {record.state}" + (f" ({record.note})" if record.note else ""))
            if record.position != record.last:
                lines.append(f"    expected {record.expected or 'no file'}, found {record.found or 'no file'}")
    return "\n".join(lines + ([f"next: {status.next}"] if status.next else []))


def _status(options: argparse.Namespace) -> tuple[Exit, dict, str]:
    target, version = _target(options)
    status = state.inspect(target, Manifest.load(version))
    return status.code, status.as_json(), _describe(status)


def _change(options: argparse.Namespace, revert: bool) -> tuple[Exit, dict, str]:
    target, version = _target(options)
    series, tree = Series.load(version), _wheel_tree(options, version)
    if options.dry_run:
        steps = install.build(target, series, revert=revert, wheel=tree)
    else:
        wait = 60.0 if options.wait is None else options.wait
        steps = install.change(target, series, revert=revert, wheel=tree, wait=wait)
    status = state.inspect(target, series.manifest)
    verb = "would change" if options.dry_run else "changed"
    lines = [f"{verb} {step.path}" for step in steps] or ["nothing to change"]
    report = status.as_json() | {"changed": [step.path for step in steps], "dry_run": options.dry_run}
    done = "" if options.dry_run else f"\n{status.message}: OpenRLHF {version} in {target}"
    return Exit.OK, report | {"code": 0}, "\n".join(lines) + done


def _apply(options: argparse.Namespace) -> tuple[Exit, dict, str]:
    return _change(options, revert=False)


def _revert(options: argparse.Namespace) -> tuple[Exit, dict, str]:
    return _change(options, revert=True)


def _verify(options: argparse.Namespace) -> tuple[Exit, dict, str]:
    target, version = _target(options)
    series = Series.load(version)
    status = state.inspect(target, series.manifest)
    if status.code != Exit.OK:
        return status.code, status.as_json(), _describe(status)
    series.check(_pristine(target, series, None))
    for record in status.files:
        install.compile_text(record.path, state.read_installed(target, record.path))
    text = f"verified {len(status.files)} files and {status.total} patches: OpenRLHF {version} in {target}"
    return Exit.OK, status.as_json(), text


def _pristine(target: Path, series: Series, tree: Tree | None) -> dict[str, bytes | None]:
    """Return the pristine texts of the touched files, by reverting the installed patches or from a wheel."""
    texts: dict[str, bytes | None] = {}
    status = state.inspect(target, series.manifest)
    for record in status.files:
        if tree is not None:
            texts[record.path] = tree.get(record.path)
        elif record.position is None:
            raise PatchError(status.code, status.message, status.next)
        else:
            text = state.read_installed(target, record.path)
            texts[record.path] = series.move(record.path, text, record.position, 0)
    return texts


def _diff(options: argparse.Namespace) -> tuple[Exit, dict, str]:
    target, version = _target(options)
    series = Series.load(version)
    out = {}
    for path, old in sorted(_pristine(target, series, _wheel_tree(options, version)).items()):
        new = state.read_installed(target, path)
        if new != old:
            out[path] = unified.render_diff(unified.make_diff(path, old, new, context=3)).decode(errors="replace")
    return Exit.OK, {"code": 0, "files": out}, "".join(out.values()).rstrip("\n")


def _refresh(options: argparse.Namespace) -> tuple[Exit, dict, str]:
    out = options.out or Path(f"{PACKAGE}-{options.to}-refresh")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PatchError(Exit.USAGE, f"{out} exists and is not empty", f"rm -r {out}, or give another --out")
    if manifest.ROOT in (out.resolve(), *out.resolve().parents):
        raise PatchError(Exit.USAGE, f"refresh does not write into {manifest.ROOT}", "give another --out")
    old = options.version or _old_version(options.target)
    series = Series.load(old)
    with tempfile.TemporaryDirectory(prefix="openrlhf-refresh-") as scratch:
        new_wheel = options.wheel or wheel.download(options.to, Path(scratch, "new"))
        new = wheel.read_wheel(new_wheel, options.to)[1]
        pristine = _old_pristine(options, series, Path(scratch, "old"))
    series.check(pristine)
    result = rebase.rebase(series, pristine, new)
    rebase.write_report(out, series, options.to, result)
    conflicts = sorted({misfit.patch for misfit in result.misfits})
    report: dict = {"from": old, "to": options.to, "out": str(out), "hunks": len(result.misfits)}
    report |= {"fitting": [change.name for change in result.fitting]}
    report |= {"upstream": result.upstream, "conflicts": conflicts}
    code = Exit.CONFLICTS if result.misfits else Exit.OK
    fit, total = len(result.fitting), len(series.patches)
    text = f"{old} -> {options.to}: {fit} of {total} patches fit, {len(result.upstream)} are upstream, "
    text += f"{len(conflicts)} do not fit ({len(result.misfits)} hunks)\nnext: read {out}/REPORT.md"
    return code, report | {"code": int(code)}, text


def _old_version(target: Path | None) -> str:
    """Return the version whose patches are rebased: the installed one if it has patches, else the only one."""
    try:
        installed = state.installed_version(state.check_target(target or state.find_target()))
    except PatchError as error:
        if target or error.code not in (Exit.MISSING, Exit.UNKNOWN_VERSION):
            raise
        return _only_version()
    return installed if installed in known_versions() else _only_version()


def _old_pristine(options: argparse.Namespace, series: Series, scratch: Path) -> dict[str, bytes | None]:
    """Return the old version's touched files: from --from-wheel, the installed package, or a download."""
    old = series.manifest.version
    if options.from_wheel:
        tree = wheel.read_wheel(options.from_wheel, old)[1]
        return {path: tree.get(path) for path in series.manifest.files}
    try:
        target = state.check_target(options.target or state.find_target())
        if state.installed_version(target) == old:
            return _pristine(target, series, None)
    except PatchError as error:
        if options.target or error.code not in (Exit.MISSING, Exit.UNKNOWN_VERSION):
            raise
    tree = wheel.read_wheel(wheel.download(old, scratch), old)[1]
    return {path: tree.get(path) for path in series.manifest.files}


def _export(options: argparse.Namespace) -> tuple[Exit, dict, str]:
    version = options.version or _only_version()
    out = options.out or folder(version)
    changed = author.export(Path(getattr(options, "from")), version, out)
    text = "\n".join(f"wrote {name}" for name in changed) or "nothing to change"
    return Exit.OK, {"code": 0, "folder": str(out), "changed": changed}, text


def _import(options: argparse.Namespace) -> tuple[Exit, dict, str]:
    to, tree = Path(options.to), None
    if options.wheel:
        version, tree = wheel.read_wheel(options.wheel, options.version)
    else:
        target, version = _target(options)
    series = Series.load(version) if version in known_versions() else None
    if tree is None:
        tree = author.pristine_tree(target, _pristine(target, series, None) if series else {})
    author.make_worktree(to, version, tree, series)
    number = len(series.patches) if series else 0
    text = f"made {to}: OpenRLHF {version} and {number} patches\nnext: ./apply_patches.sh export --from {to}"
    return Exit.OK, {"code": 0, "worktree": str(to), "version": version, "patches": number}, text


def _only_version() -> str:
    known = known_versions()
    if len(known) != 1:
        what = f"there are patches for {', '.join(known) or 'no version'}"
        raise PatchError(Exit.USAGE, f"which version? {what}", "the same command with --version V")
    return known[0]


RUN = {
    "apply": _apply,
    "status": _status,
    "revert": _revert,
    "verify": _verify,
    "diff": _diff,
    "refresh": _refresh,
    "export": _export,
    "import": _import,
}

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `diff | head` ends quietly
    sys.exit(main())
