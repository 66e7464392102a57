"""Pack what a bug report about a run needs into one archive.

    python -m scripts.bundle RUN_DIR [--out FILE] [--samples]

The archive has configuration, versions, hardware, patches, the last lines of every log, and the lines of metrics,
evaluations and the parity gate. It also has the report of `python -m scripts.gpu_check`, if this checkout has one.
Samples are left out unless you ask for them, since they show your problems. Checkpoints are always left out.

Values of this shell's secret variables are replaced by their names, however they are encoded, and so is what looks like
a key. Look through the archive before you publish it: prompts or paths in a log may be private, too.

Exit code: 0 done; 1 a file could not be read (the archive names it); 2 RUN_DIR is not a run, or FILE exists.
"""

import argparse
import io
import json
import os
import re
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.run.run_state import Run
from grpo.stack.checkout import GPU_REPORT, git_revision
from grpo.stack.command import print_plainly
from grpo.stack.problem import UserError
from grpo.stack.secrets import is_secret, redact, secrets

DONE, INCOMPLETE, REFUSED = range(3)
LOG_LINES = 2000
LOG_BYTES = 16 << 20  # of a log's end: its lines may be long
_KEYS = re.compile(
    r"AIza[\w-]{35}|\bAQ\.[\w-]{40,}|\bhf_[A-Za-z0-9]{30,}|\bsk-[\w-]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}"
    r"|\bgithub_pat_\w{30,}|\bAKIA[A-Z0-9]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
# Names that mean nothing else in small letters, too ("tokens" may be a number), parameters of URLs, and headers.
_NAMED = re.compile(
    r"""(?i)((?:api[-_]?key|(?:access|auth|refresh)[-_]?token|secret|passw(?:or)?d|authorization)\\*["']?\s*[=:,]\s*"""
    r"""\\*["']?(?:(?:bearer|basic)\s+)?|[?&](?:key|token|sig|signature)=)([^\s"',;<>\\&]{8,})"""
)
_IN_ADDRESS = re.compile(r"""(://[^\s/:@"']+:)[^\s/@"']+@""")
_ASSIGNED = re.compile(r"""\b([A-Z][A-Z0-9_]{2,})(\\*["']?\s*[=:]\s*\\*["']?)([^\s"',;<>\\]{8,})""")


def clean(text: str) -> str:
    """Return a text without secrets: of this shell, in assignments to variables with such names, and common keys."""

    def unassigned(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}<{match[1]}>" if is_secret(match[1]) else match[0]

    text = _KEYS.sub("<key>", _ASSIGNED.sub(unassigned, redact(text)))
    return _IN_ADDRESS.sub(r"\1<secret>@", _NAMED.sub(r"\1<secret>", text))


def tail(file: Path, lines: int = LOG_LINES, window: int = LOG_BYTES) -> str:
    """Return the last lines of a log without secrets. A value that is cut at the window's start is left out whole."""
    longest = max((len(value.encode()) for value in secrets().values()), default=0)
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        start = max(0, size - window - 4 * longest)  # URL quoting, the longest spelling, takes three times the bytes
        opened.seek(start)
        text = clean(opened.read().decode("utf-8", errors="replace"))
    if start:
        text = text[4 * longest :].partition("\n")[2]
    return "".join(text.splitlines(keepends=True)[-lines:])


def contents(run: Run, samples: bool, report: Path = GPU_REPORT) -> Iterator[tuple[str, Path, bool]]:
    """Yield the files of a bundle: the name in the archive, the file, and whether only its end counts."""
    files = run.files
    for file in (files.config, files.environment, files.patches, files.command, files.resumes, files.ends):
        yield file.name, file, False
    for file in (files.metrics, files.evals, files.parity):
        yield file.name, file, False
    for file in sorted(path for path in files.logs.rglob("*") if path.is_file() and not path.is_symlink()):
        yield f"logs/{file.relative_to(files.logs)}", file, True
    yield "gpu_check.json", report, False
    if samples:
        for file in sorted(files.samples.glob("*.jsonl")):
            yield f"samples/{file.name}", file, False


def pack(run: Run, out: Path, samples: bool, report: Path = GPU_REPORT) -> dict[str, Any]:
    """Write the archive whole or not at all, readable by its owner alone. Return what it says about itself."""
    about: dict[str, Any] = {
        "run": run.name,
        "state": run.state,
        "exit_code": run.code,
        "step": run.step,
        "planned": run.planned,
        "packed": time.time(),
        "git": git_revision(),
        "samples": samples,
        "missing": [],
        "unreadable": {},
    }
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    top = re.sub(r"[^\w.-]", "_", run.name)
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for name, file, is_log in contents(run, samples, report):
                try:
                    text = tail(file) if is_log else clean(file.read_text(encoding="utf-8", errors="replace"))
                except FileNotFoundError:
                    about["missing"].append(name)
                except OSError as error:
                    about["unreadable"][name] = str(error)
                else:
                    _add(archive, f"{top}/{name}", text)
            _add(archive, f"{top}/bundle.json", clean(json.dumps(about, indent=2)) + "\n")
        os.replace(aside, out)
    finally:
        aside.unlink(missing_ok=True)
    return about


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    member = tarfile.TarInfo(clean(name))
    member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
    archive.addfile(member, io.BytesIO(data))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    assert __doc__
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m scripts.bundle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the archive (default: NAME.tar.gz in this folder)")
    parser.add_argument("--samples", action="store_true", help="pack the rollouts and evaluations, too")
    options = parser.parse_args(argv)
    try:
        run = Run(options.run_dir)
        out = options.out or Path(f"{run.name}.tar.gz")
        if out.exists():
            raise UserError(f"{out} exists", "name another file with --out")
        about = pack(run, out, options.samples)
    except (UserError, OSError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return REFUSED
    size = out.stat().st_size / 1e6
    print(
        f"{out}: {size:.1f} MB{'' if options.samples else ', without samples'}; look through it before you publish it"
    )
    for name, reason in about["unreadable"].items():
        print(f"bundle: {name} could not be read ({reason})", file=sys.stderr)
    return INCOMPLETE if about["unreadable"] else DONE


if __name__ == "__main__":
    print_plainly()
    sys.exit(main())
