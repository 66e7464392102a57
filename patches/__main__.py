"""Version-pinned patches on the installed OpenRLHF.

apply    apply the whole series; a second time changes nothing (default)
status   show what is applied; the exit code is the state
revert   restore OpenRLHF's own files
verify   check the package, and that the patches lead from OpenRLHF's own files to it
diff     print your hand edits; without any, what the patches change
import   authors: make a git repository of OpenRLHF's own files, with a commit for each patch
export   authors: write the commits of such a repository as the series of a version
"""

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from patches import authors
from patches.install import STATES, Installed, find_package, find_version
from patches.series import Exit, PatchError, load

COMMANDS = ("apply", "status", "revert", "verify", "diff", "import", "export")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (see `Exit`)."""
    options = _parse(argv)
    try:
        code, report = _run(options)
    except PatchError as error:
        code, report = error.code, {"error": str(error), "next": error.next_command}
    if options.target and "./apply_patches.sh" in report.get("next", ""):
        report["next"] += f" --target {shlex.quote(str(options.target))}"
    if options.json:
        print(json.dumps({"code": int(code)} | report, indent=2))
    else:
        first = f"error: {report['error']}" if "error" in report else report["text"]
        following = [f"next: {report['next']}"] if report.get("next") else []
        print(first, *following, sep="\n", file=sys.stderr if "error" in report else sys.stdout)
    return int(code)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    codes = ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)
    parser = argparse.ArgumentParser(
        "./apply_patches.sh", description=__doc__, epilog=f"exit codes: {codes}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("command", nargs="?", default="apply", choices=COMMANDS, metavar="COMMAND")
    add("--target", type=Path, metavar="DIR", help="the openrlhf package (default: the one of this Python)")
    add("--version", metavar="V", help="OpenRLHF's version (default: the package's)")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--dry-run", action="store_true", help="apply, revert: build the package, but change nothing")
    add("--edits-to", type=Path, metavar="FILE", help="apply, revert: save hand edits in FILE, then replace them")
    add("--to", type=Path, metavar="DIR", help="import: the folder to make")
    add("--from", type=Path, metavar="DIR", dest="source", help="export: the repository")
    options = parser.parse_args(argv)
    for command, flag, value in (("import", "--to", options.to), ("export", "--from", options.source)):
        if (options.command == command) != bool(value):
            parser.error(f"{command} and {flag} DIR go together")
    return options


def _run(options: argparse.Namespace) -> tuple[Exit, dict[str, Any]]:
    command, package = options.command, find_package(options.target)
    version = options.version or find_version(package)
    if command == "export":
        changed = authors.export(options.source, version)
        return Exit.OK, {"text": "\n".join(f"wrote {name}" for name in changed) or "nothing to change"}
    installed = Installed(package, load(version))
    status, verb = installed.inspect(), ""
    if command == "import":
        authors.make(options.to, installed.find_original(), installed.series)
        return Exit.OK, {"text": f"made {options.to}, with a commit for each patch"}
    if command == "diff":
        return Exit.OK, {"text": installed.diff().rstrip("\n")}
    if command == "verify" and status["state"] == "applied":
        with installed.build():
            verb = "verified: "
    if command in ("apply", "revert") and (status["state"] != "edited" or options.edits_to):
        verb = _change(options, installed, status["state"])
        status = installed.inspect()
    text = f"{verb}{status['message']}: OpenRLHF {status['version']} in {status['target']}"
    return Exit.OK if verb else STATES[status["state"]], status | {"text": text}


def _change(options: argparse.Namespace, installed: Installed, state: str) -> str:
    """Apply or revert the series; return what happened, as the start of a sentence."""
    if state == ("pristine" if options.command == "revert" else "applied"):
        return "nothing to change; "
    if options.dry_run:
        with installed.build():
            return f"would {options.command} the patches; "
    if state == "edited":
        try:
            with options.edits_to.open("x", encoding="utf-8", errors="surrogateescape") as file:
                file.write(installed.diff())
        except OSError as error:
            raise PatchError(Exit.USAGE, str(error), "give --edits-to another file") from error
    installed.change(reverts=options.command == "revert")
    return "changed; "


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `diff | head` ends quietly
    sys.exit(main())
