"""Pack what a bug report about a run needs into one archive.

    python -m scripts.bundle RUN_DIR [--out FILE] [--samples]

The archive has configuration, versions, hardware, patches, the last lines of every log, and the lines of metrics,
evaluations and the parity gate. It also has the report of `python -m scripts.gpu_check`, if this checkout has one.
Samples are left out unless you ask for them, since they show your problems. Checkpoints are always left out.

Values of this shell's secret variables are replaced by their names, also quoted, in hex, or in base64, and so is what
looks like a key, a token, or a password. A value below 8 characters is only found behind its name, and one that is
compressed, encrypted, or encoded in two ways is not. Links are not followed. Look through the archive before you
publish it: prompts or paths in a log may be private, too, and no pattern knows every key.

Exit code: 0 done; 1 a file could not be read (the archive names it); 2 RUN_DIR is not a run, or FILE exists.
"""

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
from grpo.stack import command
from grpo.stack.checkout import GPU_REPORT, git_revision
from grpo.stack.json_files import open_file, read_rest
from grpo.stack.problem import UserError
from grpo.stack.secrets import is_secret, redact, secrets

DONE, INCOMPLETE, REFUSED = range(3)
LOG_LINES = 2000
# What may lie within a key: the codes of a terminal, also as JSON has them, and the zeros of UTF-16.
_INVISIBLE = re.compile(r"(?:\x1b|\\+(?:u001b|x1b|033|e))\[[0-9;]*[A-Za-z]|\0")
LOG_BYTES = 16 << 20  # of a log's end: its lines may be long
# Also without its end.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----(?:[^-]|-(?!----)){0,8000}(?:-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----)?"
)
# Keys that their form shows, and what a line has, in small letters, if it has one. The n of "\n" in JSON is no part of
# one.
_KEYS = re.compile(
    r"AIza[\w-]{35}|hooks\.slack\.com/\S+|discord(?:app)?\.com/api/webhooks/\S+|(?:\b|(?<=\\[bfnrt]))(?:"
    r"(?:AQ\.|ya29\.)[\w-]{40,}|(?:hf|npm|gsk|r8|ntn|lin_api)_[A-Za-z0-9]{30,}|(?:sk|nvapi|xai)-[\w-]{20,}"
    r"|[sr]k_(?:live|test)_\w{16,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|(?:pypi-|dop_v1_)[\w-]{40,}"
    r"|gl(?:pat|dt|ft|rt|soat|cbt|imt|ptt|agent|oas)-[\w-]{20,}|GR1348941[\w-]{20,}|hvs\.[\w-]{20,}|dapi[0-9a-f]{32}"
    r"|xox[a-z](?:\.xox[a-z])?-[\w-]{10,}|SG\.[\w-]{16,}\.[\w-]{16,}|AKC[A-Za-z0-9]{10,}"
    r"|(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{16}\b|(?:bot)?\d{8,10}:AA[\w-]{33}\b|[0-9a-f]{32}-us\d{1,2}\b"
    r"|eyJ[\w-]{8,}={0,2}(?:\.[\w=+/-]+){1,4})"  # JSON web tokens
)
_IN_KEYS = (
    "aiza", "aq.", "ya29.", "hf_", "npm_", "gsk_", "r8_", "sk-", "nvapi-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_",
    "ghs_", "ghr_", "github_pat_", "pypi-", "dop_v1_", "gl", "gr1348941", "xox", "hooks.slack", "sg.", "akc", "ntn_",
    "lin_api_", "xai-", "hvs.", "dapi", "webhooks", "a3t", "abia", "acca", "akia", "asia", ":aa", "-us", "eyj",
)  # fmt: skip
_SCHEME = r"(?:(?:bearer|basic|token|digest)\s+)?"
# The end of a name and the value. Some names mean nothing else; of others the value must look like a secret.
_NAMED = re.compile(
    r"""(?ix) (?: (?P<strong>passw(?:or)?d|passphrase|(?-i:PASS)|pwd|secret|credentials?|authorization|cookie
        |authtoken|art-api
        |(?:api|access|account|auth|client|encryption|private|secret|service|shared|signing)[-_]?(?:access)?[-_]?key)
        |token|auth|(?P<key>key) )
    (?:\\*["']?\s*(?:=>|[=:,])\s* | (?<=password)[ \t]{1,9})
    (?: (?P<escape>\\*)(?P<quote>["'])"""
    + _SCHEME
    + r"""(?P<quoted>.{4,2000}?)(?<!\\)(?P=escape)(?P=quote)|"""
    + _SCHEME
    + r"""(?P<plain>[^\s"'<>\\]{4,}))"""
)
_IN_NAMES = ("pass", "pwd", "secret", "credential", "cookie", "token", "auth", "key", "art-api")
_ASSIGNED = re.compile(r"""\b([A-Z][A-Z0-9_]{2,})(\\*["']?\s*[=:]\s*\\*["']?)(?!\d+\b)([^\s"',;<>\\]{4,})""")
_PARAMETER = re.compile(r"(?i)([?&](?:[\w-]*-)?(?:key|token|sig|signature)=|\b(?:bearer|negotiate)\s+)[\w.~+/=%-]{8,}")
_FLAG = re.compile(r"""(?i)(\s--[\w-]*(?:token|key|secret|pass(?:w(?:or)?d)?)[ \t]+["']?)([^\s"'-][^\s"']+)""")
_BASIC = re.compile(r"\b([Bb]asic\s+)(?=[\w+/]*[A-Z0-9])[\w+/]{8,}=*")
_ON_COMMAND_LINE = re.compile(r"""(\s(?:-u|--user|--proxy-user)[\s=]+["']?[^\s:"'/]+:)[^\s"']{3,}""")
# name:password@host, in an address or alone.
_IN_ADDRESS = re.compile(r"""(://[^\s/:@"']*:)[^\s/"']+@|(?<![\w.+%-])([\w.+%-]+:)[^\s/"'<>,;]{3,}@(?=[A-Za-z0-9])""")


def clean(text: str) -> str:
    """Return a text without secrets: of this shell, in assignments to variables with such names, and common keys."""
    text = _PRIVATE_KEY.sub("<key>", redact(_INVISIBLE.sub("", text)))
    return "".join(map(_clean_line, text.splitlines(keepends=True)))


def _clean_line(line: str) -> str:
    small = line.lower()

    def has(*words: str) -> bool:  # searching for words takes a tenth of the time
        return any(word in small for word in words)

    if has(*_IN_KEYS):
        line = _KEYS.sub("<key>", line)
    if has(*_IN_NAMES):
        line = _NAMED.sub(_hide_named, _ASSIGNED.sub(_hide_assigned, line))
        line = _FLAG.sub(lambda match: f"{match[1]}<secret>" if _looks_secret(match[2], 12) else match[0], line)
    if has("key=", "token=", "sig=", "signature=", "bearer", "negotiate"):
        line = _PARAMETER.sub(r"\1<secret>", line)
    if has("basic"):
        line = _BASIC.sub(r"\1<secret>", line)
    if has("-u"):
        line = _ON_COMMAND_LINE.sub(r"\1<secret>", line)
    if has("@"):
        line = _IN_ADDRESS.sub(lambda match: f"{match[1] or match[2]}<secret>@", line)
    return line


def _hide_assigned(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}<{match[1]}>" if is_secret(match[1]) else match[0]


def _hide_named(match: re.Match[str]) -> str:
    """Return a name with its value replaced, if the value is a secret."""
    part = "quoted" if match["quoted"] else "plain"
    if not match["strong"] and not _looks_secret(match[part], 16 if match["key"] else 8):
        return match[0]
    start, end = (place - match.start() for place in match.span(part))
    return f"{match[0][:start]}<secret>{match[0][end:]}"


def _looks_secret(value: str, shortest: int) -> bool:
    """Tell a secret from a number, a special token of a model, a call in a traceback, and the key of a table."""
    has_both = re.search(r"\d", value) and re.search("[A-Za-z]", value)
    return bool(has_both and len(value) >= shortest and re.fullmatch(r"[^\s()\[\]{}<>|]+", value))


def tail(file: Path, lines: int = LOG_LINES, window: int = LOG_BYTES) -> str:
    """Return the last lines of a log without secrets. A value that is cut at the window's start is left out whole."""
    longest = max((len(value.encode()) for value in secrets().values()), default=0)
    with open_file(file, follow=False) as opened:  # what a link points to may be anything
        size = opened.seek(0, os.SEEK_END)
        start = max(0, size - window - 4 * longest)  # URL quoting, the longest spelling, takes three times the bytes
        opened.seek(start)
        text = clean(opened.read().decode("utf-8", errors="replace"))
    if start:
        text = text[4 * longest :].partition("\n")[2]
    return "".join(text.splitlines(keepends=True)[-lines:])


def contents(run: Run, samples: bool, report: Path = GPU_REPORT) -> Iterator[tuple[str, Path, bool]]:
    """Yield the files of a bundle: the name in the archive, the file, and whether only its end counts.

    Raises:
        UserError: if a folder of the run is a link.
    """
    files = run.files
    for folder in (files.logs, files.samples):
        if folder.is_symlink():
            raise UserError(f"{folder} is a link, and may lead to private files", "replace it with the folder itself")
    whole = (files.config, files.environment, files.patches, files.command, files.resumes, files.ends)
    for file in (*whole, files.metrics, files.evals, files.parity):
        yield file.name, file, False
    for file in sorted(path for path in files.logs.rglob("*") if not path.is_dir()):
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
                    text = tail(file) if is_log else _read_whole(file)
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


def _read_whole(file: Path) -> str:
    with open_file(file, follow=False) as opened:
        return clean(read_rest(opened).decode("utf-8", errors="replace"))


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    member = tarfile.TarInfo(clean(name))
    member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
    archive.addfile(member, io.BytesIO(data))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.bundle", __doc__)
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
    size = f"{out.stat().st_size / 1e6:.1f} MB" + ("" if options.samples else ", without samples")
    print(f"{out}: {size}; look through it before you publish it")
    for name, reason in about["unreadable"].items():
        print(f"bundle: {name} could not be read ({reason})", file=sys.stderr)
    return INCOMPLETE if about["unreadable"] else DONE


if __name__ == "__main__":
    command.print_plainly()
    sys.exit(main())
