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
from patches.series import PACKAGE, Series, base_version, folder, read_order, sha256
from patches.texts import hand_edits, patched_texts, pristine_texts
from patches.wheel import Tree, Wheel, download, list_released_after, order, read_wheels

Options = argparse.Namespace
Answer = tuple[Exit, dict, str]  # exit code, JSON report, text


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (see `Exit`)."""
    words = sys.argv[1:] if argv is None else argv
    is_named = words and (not words[0].startswith("-") or words[0] in ("-h", "--help"))
    options = _parser().parse_args(words if is_named else ["apply", *words])
    try:
        code, report, text = options.run(options)
    except PatchError as error:
        advice = error.next_command.replace(AGAIN, shlex.join(["./apply_patches.sh", *words]))
        code, report, text = error.code, {"error": str(error), "next": advice}, ""
        if not options.json:
            print(f"error: {error}" + (f"\nnext: {advice}" if advice else ""), file=sys.stderr)
    if options.json:
        print(json.dumps({"text": text, "code": int(code)} | report, indent=2))
    elif text:
        print(text)
    return int(code)


def _target(options: Options) -> tuple[Path, str]:
    target = package.check_target(options.target or package.find_target())
    if options.version:
        package.refuse_another_version(target, options.version)
    return target, options.version or package.installed_version(target)


def _find_installed(options: Options) -> tuple[Path, Series, Tree | None]:
    """Return the package, its series, and the files of the wheel that the user gives."""
    target, version = _target(options)
    wheels = read_wheels(options.wheel)
    if wheels and version not in wheels:
        raise PatchError(Exit.NO_WHEEL, f"the wheel is {PACKAGE} {', '.join(wheels)}, not {version}")
    return target, Series.load_checked(version), wheels[version].tree if wheels else None


def _describe(status: package.Status) -> str:
    lines = [f"{status.message}: OpenRLHF {status.version} in {status.target}"]
    if status.state not in ("applied", "pristine"):
        lines += [f"  {each.path}: {each.state}" for each in status.files if each.state != "applied"]
    return "\n".join(lines + ([f"next: {status.next}"] if status.next else []))


def _status(options: Options) -> Answer:
    target, version = _target(options)
    status = package.inspect(target, Series.load_checked(version))
    return status.code, status.as_json(), _describe(status)


def _change(options: Options) -> Answer:
    target, series, wheel = _find_installed(options)
    how = {"revert": options.command == "revert", "wheel": wheel, "edits_to": options.edits_to}
    has_edits = package.inspect(target, series).state == "edited"
    if options.dry_run:
        steps = install.build(target, series, **how)
    else:
        steps = install.change(target, series, **how, wait=options.wait)
    status = package.inspect(target, series)
    changed = [step.file.relative_to(target.parent).as_posix() for step in steps]
    verb = "would change" if options.dry_run else "changed"
    lines = [f"{verb} {path}" for path in changed] or ["nothing to change"]
    if options.edits_to:
        saved = f"{'would save' if options.dry_run else 'saved'} your edits in {options.edits_to}"
        lines.append(saved if has_edits else "there are no hand edits to save")
    if not options.dry_run:
        lines.append(f"{status.message}: OpenRLHF {series.version} in {target}")
    return Exit.OK, status.as_json() | {"changed": changed}, "\n".join(lines)


def _verify(options: Options) -> Answer:
    target, series, wheel = _find_installed(options)
    status = package.inspect(target, series)
    if status.code != Exit.OK:
        return status.code, status.as_json(), _describe(status)
    patched_texts(target, series, wheel)
    what = f"{len(series.list_expected())} files and {len(series.patches)} patches"
    return Exit.OK, status.as_json(), f"verified {what}: OpenRLHF {series.version} in {target}"


def _diff(options: Options) -> Answer:
    target, series, wheel = _find_installed(options)
    status = package.inspect(target, series)
    if status.state == "edited":
        old, new = hand_edits(target, series, status, wheel)
    else:
        old = pristine_texts(target, series, list(series.patched), wheel)
        new = {path: package.read_installed(target, path) for path in old}
    text = git.diff(old, new).decode(errors="replace")
    return Exit.OK, {"hand_edits": status.state == "edited", "diff": text}, text.rstrip("\n")


def _start(options: Options, load: Callable[[str], Series] = Series.load_checked) -> tuple[Series, Wheel]:
    """Return the series to start from, and the wheel of its version: given, as installed, or downloaded."""
    series = load(options.version or base_version())
    old = (
        read_wheels(options.wheel).get(series.version) or _installed_wheel(options, series) or download(series.version)
    )
    if {path: sha256(text) for path, text in old.tree.items()} != series.pristine:
        raise PatchError(Exit.NO_WHEEL, f"the package of {old.version} is not the one of the manifest")
    return series, old


def _installed_wheel(options: Options, series: Series) -> Wheel | None:
    target = options.target or package.find_installed()
    if not target or not (metadata := package.dist_info(target, series.version) / "METADATA").is_file():
        return None
    texts = pristine_texts(target, series, list(series.pristine), None)
    tree = {path: text for path, text in texts.items() if text is not None}
    return Wheel(series.version, tree, metadata.read_text(encoding="utf-8"))


def _refresh(options: Options) -> Answer:
    if options.to:
        work = options.work or Path(f"{PACKAGE}-{options.to}-refresh")
        refresh.check(options.to, options.version or base_version(), work)
        series, old = _start(options)
        new = read_wheels(options.wheel).get(options.to) or download(options.to)
        outcome = refresh.start(work, series, old, new)
    else:
        outcome = refresh.continue_refresh(_work(options), dict(options.retire))
    return Exit.OK if outcome.done else Exit.CONFLICTS, {}, outcome.text


def _work(options: Options) -> Path:
    folders = [options.work] if options.work else sorted(Path.cwd().glob(f"{PACKAGE}-*-refresh"))
    if len(folders) != 1:
        what = f"there are {', '.join(path.name for path in folders)}" if folders else "none is in this folder"
        raise PatchError(Exit.USAGE, f"which refresh? {what}", "./apply_patches.sh refresh --continue --work DIR")
    return folders[0]


def _drift(options: Options) -> Answer:
    series, old = _start(options)
    given = read_wheels(options.wheel)
    later = sorted(given.keys() - {series.version}, key=order) if given else list_released_after(series.version)
    drifts, previous = [], old.tree
    for number, version in enumerate(later, 1):
        print(f"OpenRLHF {version} ({number} of {len(later)})", file=sys.stderr, flush=True)
        new = given.get(version) or download(version)
        drifts.append(drift.measure(series, old.tree, new, previous))
        previous = new.tree
    report = {"from": series.version, "versions": [asdict(each) for each in drifts]}
    return Exit.OK, report, "\n".join(drift.table(drifts, options.changes))


def _export(options: Options) -> Answer:
    version, work = options.version or base_version(), getattr(options, "from")
    series = Series.load(version)
    if refresh.is_refresh(work):
        message = f"{work} is the folder of a refresh, which writes the series itself once no conflict is left"
        raise PatchError(Exit.BAD_WORKTREE, message, refresh.build_continue_command(work))
    root = git.git(work, "rev-list", "--max-parents=0", "HEAD").decode().split()[-1]
    changed = worktree.export(work, version, series.base, series.retired, root, folder(version))
    text = "\n".join(f"wrote {name}" for name in changed) or "nothing to change"
    return Exit.OK, {}, text


def _import(options: Options) -> Answer:
    to = Path(options.to)
    series, old = _start(options, Series.load)
    # The order is the series file's: after a merge of two branches, the manifest may be that of one of them.
    names = [name for name in read_order(folder(series.base) / "series") if name not in series.retired]
    worktree.make(to, old.version, old.tree, replace(series, patches=dict.fromkeys(names, "")))
    text = f"made {to}: OpenRLHF {old.version} and {len(names)} patches\n"
    text += f"next: ./apply_patches.sh export --from {shlex.quote(str(to))}"
    return Exit.OK, {}, text


# command -> what runs it, its help, and its flags; "!" marks a flag that must be there, "|" separates alternatives
COMMANDS: dict[str, tuple[Callable[[Options], Answer], str, str]] = {
    "apply": (_change, "apply the whole series; a second time changes nothing (default)",
              "target wheel edits-to dry-run wait"),
    "status": (_status, "show what is applied; the exit code is the state", "target"),
    "revert": (_change, "restore the pristine files, byte for byte", "target wheel edits-to dry-run wait"),
    "verify": (_verify, "check the package, the series, and that the patches lead from the pristine files to it",
               "target wheel"),
    "diff": (_diff, "print your hand edits; without any, what the patches change", "target wheel"),
    "refresh": (_refresh, "move the series to another OpenRLHF version, in a git repository of its own",
                "to|continue! work retire target wheel"),
    "drift": (_drift, "tell how the series fits every OpenRLHF released after the pinned one",
              "changes target wheel"),
    "export": (_export, "authors: write the commits of a git worktree as patches", "from!"),
    "import": (_import, "authors: create that git worktree from the pristine package and the series",
               "to! target wheel"),
}  # fmt: skip
FILE, DIR = {"type": Path, "metavar": "FILE"}, {"type": Path, "metavar": "DIR"}
FLAGS: dict[str, dict] = {
    "target": {**DIR, "help": "the openrlhf package (default: the one installed in this Python)"},
    "version": {"metavar": "V", "help": "OpenRLHF's version (default: the target's; for authors, the base's)"},
    "json": {"action": "store_true", "help": "print one JSON object instead of text"},
    "dry-run": {"action": "store_true", "help": "build and compile, but change nothing"},
    "wait": {"type": float, "metavar": "S", "default": 60.0, "help": "seconds to wait for another call (default 60)"},
    "edits-to": {**FILE, "help": "save hand edits in FILE as a patch, then replace them"},
    "wheel": {**FILE, "action": "append", "default": [], "help": "a wheel, or a folder of wheels; may be repeated"},
    "to": {"metavar": "V|DIR", "help": "refresh: the new version; import: the folder to make"},
    "continue": {"action": "store_true", "help": "go on after your edits"},
    "work": {**DIR, "help": "the git repository (default: openrlhf-V-refresh)"},
    "retire": {"nargs": 2, "action": "append", "default": [], "metavar": ("PATCH", "REASON"), "help": "not needed"},
    "changes": {"action": "store_true", "help": "also print what each release changed in code that patches rely on"},
    "from": {**DIR, "help": "the git worktree"},
}


def _parser() -> argparse.ArgumentParser:
    codes = ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)
    what = "Version-pinned patches on the installed OpenRLHF."
    epilog = f"exit codes: {codes}"
    parser = argparse.ArgumentParser(prog="./apply_patches.sh", description=what, epilog=epilog, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (run, what, flags) in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what, allow_abbrev=False)
        command.set_defaults(run=run)
        for words in (*flags.split(), "version", "json"):
            group = command.add_mutually_exclusive_group(required=words.endswith("!"))
            for flag in words.removesuffix("!").split("|"):
                group.add_argument(f"--{flag}", **FLAGS[flag])
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `diff | head` ends quietly
    sys.exit(main())
