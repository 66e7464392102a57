"""Command line of the patch tool: `./apply_patches.sh` or `python -m patches`."""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from patches import authors, tree
from patches.install import STATES, Installed, Status, find_package, find_version
from patches.series import Exit, PatchError, load

Options = argparse.Namespace


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (see `Exit`)."""
    words = sys.argv[1:] if argv is None else argv
    is_named = words and (not words[0].startswith("-") or words[0] in ("-h", "--help"))
    options = _parser().parse_args(words if is_named else ["apply", *words])
    try:
        code, report = options.run(options)
    except PatchError as error:
        code, report = error.code, {"error": str(error), "next": error.next_command}
    if options.json:
        print(json.dumps({"code": int(code)} | report, indent=2))
    else:
        output = sys.stderr if "error" in report else sys.stdout
        start = "error: " if "error" in report else ""
        lines = [start + str(report.get("error") or report.get("text")), f"next: {report.get('next')}"]
        print("\n".join(lines if report.get("next") else lines[:1]), file=output)
    return int(code)


def _open(options: Options) -> Installed:
    package = find_package(options.target)
    return Installed(package, load(options.version or find_version(package)))


def _describe(status: Status, first: str = "") -> tuple[Exit, dict]:
    text = f"{status.message}: OpenRLHF {status.version} in {status.target}"
    return STATES[status.state], asdict(status) | {"text": first + text}


def _status(options: Options) -> tuple[Exit, dict]:
    return _describe(_open(options).inspect())


def _change(options: Options) -> tuple[Exit, dict]:
    installed, reverts = _open(options), options.command == "revert"
    status = installed.inspect()
    if status.state == "edited" and not options.edits_to:
        return _describe(status)
    if options.dry_run:
        is_done = status.state == ("pristine" if reverts else "applied")
        with tempfile.TemporaryDirectory(prefix="openrlhf-build-") as scratch:
            installed.build(Path(scratch))
        return Exit.OK, asdict(status) | {"text": "nothing to change" if is_done else "would change the package"}
    if status.state == "edited":
        try:
            with options.edits_to.open("xb") as file:
                file.write(_make_diff(installed, status))
        except OSError as error:
            raise PatchError(Exit.USAGE, str(error), "give --edits-to another file") from error
    has_changed = installed.change(reverts=reverts)
    now = installed.inspect()
    return Exit.OK, _describe(now, "changed; " if has_changed else "nothing to change; ")[1] | {"changed": has_changed}


def _verify(options: Options) -> tuple[Exit, dict]:
    installed = _open(options)
    status = installed.inspect()
    if status.state == "applied":
        with tempfile.TemporaryDirectory(prefix="openrlhf-build-") as scratch:
            installed.build(Path(scratch))
    return _describe(status, "verified: " if status.state == "applied" else "")


def _diff(options: Options) -> tuple[Exit, dict]:
    installed = _open(options)
    status = installed.inspect()
    return Exit.OK, {"text": _make_diff(installed, status).decode(errors="replace").rstrip("\n")}


def _make_diff(installed: Installed, status: Status) -> bytes:
    """Return the hand edits; without any, what differs from OpenRLHF's own files."""
    with tempfile.TemporaryDirectory(prefix="openrlhf-build-") as scratch:
        is_edited = status.state == "edited"
        old = installed.build(Path(scratch)) if is_edited else installed.find_original()
        return tree.diff(old, installed.package)


def _import(options: Options) -> tuple[Exit, dict]:
    installed = _open(options)
    authors.make(options.to, installed.find_original(), installed.series)
    return Exit.OK, {"text": f"made {options.to}: OpenRLHF {installed.series.version}, and a commit for each patch"}


def _export(options: Options) -> tuple[Exit, dict]:
    version = options.version or find_version(find_package(options.target))
    changed = authors.export(getattr(options, "from"), version)
    return Exit.OK, {"text": "\n".join(f"wrote {name}" for name in changed) or "nothing to change"}


# command -> what runs it, its help, and its flags
COMMANDS: dict[str, tuple[Callable[[Options], tuple[Exit, dict]], str, str]] = {
    "apply": (_change, "apply the whole series; a second time changes nothing (default)", "dry-run edits-to"),
    "status": (_status, "show what is applied; the exit code is the state", ""),
    "revert": (_change, "restore OpenRLHF's own files", "dry-run edits-to"),
    "verify": (_verify, "check the package, and that the patches lead from OpenRLHF's own files to it", ""),
    "diff": (_diff, "print your hand edits; without any, what the patches change", ""),
    "import": (_import, "authors: make a git repository of OpenRLHF's own files, with a commit for each patch", "to"),
    "export": (_export, "authors: write the commits of such a repository as the series of a version", "from"),
}
FLAGS: dict[str, dict] = {
    "target": {"type": Path, "metavar": "DIR", "help": "the openrlhf package (default: the one of this Python)"},
    "version": {"metavar": "V", "help": "OpenRLHF's version (default: the package's)"},
    "json": {"action": "store_true", "help": "print one JSON object instead of text"},
    "dry-run": {"action": "store_true", "help": "build the package, but change nothing"},
    "edits-to": {"type": Path, "metavar": "FILE", "help": "save hand edits in FILE as a patch, then replace them"},
    "to": {"type": Path, "metavar": "DIR", "required": True, "help": "the folder to make"},
    "from": {"type": Path, "metavar": "DIR", "required": True, "help": "the repository"},
}


def _parser() -> argparse.ArgumentParser:
    codes = ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)
    parser = argparse.ArgumentParser(
        prog="./apply_patches.sh", description="Version-pinned patches on the installed OpenRLHF.",
        epilog=f"exit codes: {codes}", allow_abbrev=False,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (run, what, flags) in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what, allow_abbrev=False)
        command.set_defaults(run=run)
        for flag in (*flags.split(), "target", "version", "json"):
            command.add_argument(f"--{flag}", **FLAGS[flag])
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `diff | head` ends quietly
    sys.exit(main())
