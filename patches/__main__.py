"""Command line of the patch tool: `./apply_patches.sh` or `python -m patches`."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from patches import drift, git, install, package, refresh, worktree
from patches.errors import AGAIN, Exit, PatchError
from patches.series import PACKAGE, Series, folder, known_versions, read_order, sha256
from patches.texts import hand_edits, patched_texts, pristine_texts
from patches.wheel import Tree, Wheel, download, order, read_wheel, released_after

COMMANDS = {
    "apply": "apply the whole series; a second time changes nothing (default)",
    "status": "show what is applied; the exit code is the state",
    "revert": "restore the pristine files, byte for byte",
    "verify": "check the package, the series, and that the patches lead from the pristine files to it",
    "diff": "print your hand edits; without any, what the patches change",
    "refresh": "move the series to another OpenRLHF version, in a git repository of its own",
    "drift": "tell how the series fits every OpenRLHF released after the pinned one",
    "export": "authors: write the commits of a git worktree as patches",
    "import": "authors: create that git worktree from the pristine package and the series",
}
FILE, DIR = {"type": Path, "metavar": "FILE"}, {"type": Path, "metavar": "DIR"}
FLAGS: dict[str, tuple[str, dict]] = {  # flag -> the commands that take it, and what argparse must know
    "target": ("apply status revert verify diff refresh import drift",
               {**DIR, "help": "the openrlhf package (default: the one installed in this Python)"}),
    "version": (" ".join(COMMANDS), {"metavar": "V", "help": "OpenRLHF's version (default: the target's)"}),
    "json": (" ".join(COMMANDS), {"action": "store_true", "help": "print one JSON object instead of text"}),
    "dry_run": ("apply revert", {"action": "store_true", "help": "build and compile, but change nothing"}),
    "wait": ("apply revert", {"type": float, "metavar": "S", "help": "seconds to wait for another call (default 60)"}),
    "edits_to": ("apply revert", {**FILE, "help": "save hand edits in FILE as a patch, then replace them"}),
    "wheel": ("apply revert verify diff refresh import drift",
              {**FILE, "help": "a wheel, or a folder of wheels, with pristine files (refresh, drift: the new ones)"}),
    "from_wheel": ("refresh drift", {**FILE, "help": "a wheel, or a folder of wheels, of the old version"}),
    "to": ("refresh import", {"metavar": "V|DIR", "help": "refresh: the new version; import: the folder to make"}),
    "continue": ("refresh", {"action": "store_true", "help": "go on after your edits"}),
    "work": ("refresh", {**DIR, "help": "the git repository (default: openrlhf-V-refresh)"}),
    "retire": ("refresh", {"nargs": 2, "action": "append", "metavar": ("PATCH", "REASON"), "help": "upstream has it"}),
    "from": ("export", {**DIR, "help": "the git worktree"}),
}  # fmt: skip
EXIT_CODES = "exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)
Answer = tuple[Exit, dict, str]  # exit code, JSON report, text


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (see `Exit`)."""
    parser = _parser()
    options = parser.parse_args(argv)
    for flag, (commands, _) in FLAGS.items():
        if getattr(options, flag) and options.command not in commands.split():
            parser.error(f"--{flag.replace('_', '-')} cannot be combined with {options.command}")
    if options.command == "refresh" and bool(options.to) == bool(getattr(options, "continue")):
        parser.error("refresh needs --to VERSION, or --continue")
    for command, flag in (("import", "to"), ("export", "from")):
        if options.command == command and not getattr(options, flag):
            parser.error(f"{command} needs --{flag}")
    try:
        code, report, text = RUN[options.command](options)
    except PatchError as error:
        again = shlex.join(["./apply_patches.sh", *(sys.argv[1:] if argv is None else argv)])
        advice = error.next_command.replace(AGAIN, again)
        code, text, report = error.code, "", {"error": str(error), "next": advice}
        if code in (Exit.MISSING, Exit.UNKNOWN_VERSION):
            report["state"] = "missing" if code == Exit.MISSING else "unknown version"
        if not options.json:
            print(f"error: {error}", file=sys.stderr)
            if advice:
                print(f"next: {advice}", file=sys.stderr)
    if options.json:
        print(json.dumps(report | {"code": int(code)}, indent=2))
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
    parser.add_argument("command", nargs="?", default="apply", choices=COMMANDS, metavar="COMMAND")
    for flag, (_, how) in FLAGS.items():
        parser.add_argument(f"--{flag.replace('_', '-')}", **how)
    return parser


def _target(options: argparse.Namespace) -> tuple[Path, str]:
    target = package.check_target(options.target or package.find_target())
    return target, options.version or package.installed_version(target)


def _wheel_tree(options: argparse.Namespace, version: str) -> Tree | None:
    return read_wheel(options.wheel, version).tree if options.wheel else None


def _describe(status: package.Status) -> str:
    lines = [f"{status.message}: OpenRLHF {status.version} in {status.target}"]
    if status.state not in ("applied", "pristine"):
        odd = [each for each in status.files if each.state != "applied"]
        lines += [f"  {each.path}: {each.state}" + (f" ({each.note})" if each.note else "") for each in odd]
    return "\n".join(lines + ([f"next: {status.next}"] if status.next else []))


def _status(options: argparse.Namespace) -> Answer:
    target, version = _target(options)
    status = package.inspect(target, Series.load_checked(version))
    return status.code, status.as_json(), _describe(status)


def _change(options: argparse.Namespace) -> Answer:
    target, version = _target(options)
    series = Series.load_checked(version)
    how = {"revert": options.command == "revert", "wheel": _wheel_tree(options, version), "edits_to": options.edits_to}
    if options.dry_run:
        steps = install.build(target, series, **how)
    else:
        steps = install.change(target, series, **how, wait=60.0 if options.wait is None else options.wait)
    status = package.inspect(target, series)
    verb = "would change" if options.dry_run else "changed"
    changed = [step.file.relative_to(target.parent).as_posix() for step in steps]
    lines = [f"{verb} {path}" for path in changed] or ["nothing to change"]
    report = status.as_json() | {"changed": changed, "dry_run": options.dry_run}
    done = "" if options.dry_run else f"\n{status.message}: OpenRLHF {version} in {target}"
    return Exit.OK, report, "\n".join(lines) + done


def _verify(options: argparse.Namespace) -> Answer:
    target, version = _target(options)
    series = Series.load_checked(version)
    status = package.inspect(target, series)
    if status.code == Exit.OK:
        patched_texts(target, series, _wheel_tree(options, version))
    text = f"verified {len(series.expected())} files and {status.total} patches: OpenRLHF {version} in {target}"
    return status.code, status.as_json(), text if status.code == Exit.OK else _describe(status)


def _diff(options: argparse.Namespace) -> Answer:
    target, version = _target(options)
    series, tree = Series.load_checked(version), _wheel_tree(options, version)
    status = package.inspect(target, series)
    if status.state == "edited":
        old, new = hand_edits(target, series, status, tree)
    else:
        old = pristine_texts(target, series, list(series.patched), tree)
        new = {path: package.read_installed(target, path) for path in old}
    text = git.diff(old, new).decode(errors="replace")
    return Exit.OK, {"hand_edits": status.state == "edited", "diff": text}, text.rstrip("\n")


def _old(
    options: argparse.Namespace, given: Path | None, load: Callable[[str], Series] = Series.load_checked
) -> tuple[Series, Wheel]:
    """Return the series to start from and the wheel of its version: given, as installed, or downloaded."""
    if given:
        old = read_wheel(given, options.version or (worktree.only_version() if given.is_dir() else None))
        series = load(old.version)
    else:
        target, installed = _target(options) if options.target or package.is_installed() else (None, "")
        series = load(options.version or (installed if installed in known_versions() else worktree.only_version()))
        metadata = target and target.parent / f"{PACKAGE}-{series.version}.dist-info" / "METADATA"
        if target and metadata and metadata.is_file():
            texts = pristine_texts(target, series, list(series.pristine), None)
            tree = {path: text for path, text in texts.items() if text is not None}
            old = Wheel.of(series.version, tree, metadata.read_text(encoding="utf-8"))
        else:
            old = download(series.version, "--from-wheel")
    if {path: sha256(text) for path, text in old.tree.items()} != series.pristine:
        raise PatchError(Exit.NO_WHEEL, f"the package of {old.version} is not the one of the manifest")
    return series, old


def _refresh(options: argparse.Namespace) -> Answer:
    if getattr(options, "continue"):
        outcome = refresh.go_on(_work(options), dict(options.retire or []))
    else:
        series, old = _old(options, options.from_wheel)
        new = read_wheel(options.wheel, options.to) if options.wheel else download(options.to)
        outcome = refresh.start(options.work or Path(f"{PACKAGE}-{options.to}-refresh"), series, old, new)
    code = Exit.OK if outcome.done else Exit.CONFLICTS
    return code, {"done": outcome.done, "changed": outcome.changed, "report": outcome.text}, outcome.text


def _work(options: argparse.Namespace) -> Path:
    folders = [options.work] if options.work else sorted(Path.cwd().glob(f"{PACKAGE}-*-refresh"))
    if len(folders) != 1:
        what = f"there are {', '.join(path.name for path in folders)}" if folders else "none is in this folder"
        raise PatchError(Exit.USAGE, f"which refresh? {what}", "./apply_patches.sh refresh --continue --work DIR")
    return folders[0]


def _drift(options: argparse.Namespace) -> Answer:
    series, old = _old(options, options.from_wheel)
    if options.wheel:
        paths = sorted(options.wheel.glob("*.whl")) if options.wheel.is_dir() else [options.wheel]
        wheels = [each for each in map(read_wheel, paths) if each.version != series.version]
    else:
        wheels = [download(version) for version in released_after(series.version)]
    drifts = [drift.measure(series, old.tree, each) for each in sorted(wheels, key=lambda wheel: order(wheel.version))]
    report = {"from": series.version, "versions": [asdict(each) for each in drifts]}
    return Exit.OK, report, "\n".join(drift.table(drifts))


def _export(options: argparse.Namespace) -> Answer:
    version, work = options.version or worktree.only_version(), getattr(options, "from")
    series = Series.load(version)
    root = git.git(work, "rev-list", "--max-parents=0", "HEAD").decode().split()[-1]
    changed = worktree.export(work, version, series.base, series.retired, root, folder(version))
    text = "\n".join(f"wrote {name}" for name in changed) or "nothing to change"
    return Exit.OK, {"folder": str(folder(version)), "changed": changed}, text


def _import(options: argparse.Namespace) -> Answer:
    to = Path(options.to)
    series, old = _old(options, options.wheel, Series.load)
    # The order is the series file's: after a merge of two branches, the manifest may be that of one of them.
    names = [name for name in read_order(folder(series.base) / "series") if name not in series.retired]
    worktree.make(to, old.version, old.tree, replace(series, patches=dict.fromkeys(names, "")))
    text = f"made {to}: OpenRLHF {old.version} and {len(names)} patches\n"
    text += f"next: ./apply_patches.sh export --from {shlex.quote(str(to))}"
    return Exit.OK, {"worktree": str(to), "version": old.version, "patches": len(names)}, text


RUN = dict(zip(COMMANDS, (_change, _status, _change, _verify, _diff, _refresh, _drift, _export, _import), strict=True))

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `diff | head` ends quietly
    sys.exit(main())
