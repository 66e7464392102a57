"""For authors: a git repository in which each commit is one patch, made from a series and written as one.

The first commit is OpenRLHF's own package, named `openrlhf VERSION`. A later commit's subject is the patch's name
without `.patch`, its body is the patch's header.
"""

import json
import re
from pathlib import Path

from patches import tree
from patches.series import Exit, PatchError, Series, folder


def make(to: Path, original: Path, series: Series) -> None:
    """Create the repository in a folder that does not exist."""
    if to.exists():
        raise PatchError(Exit.USAGE, f"{to} exists", "give --to another folder")
    to.mkdir(parents=True)
    tree.copy(original, to / "openrlhf")
    tree.git(to, "init", "--quiet", "--template=", "--initial-branch=patches")
    tree.git(to, "add", "--all", "--force")
    tree.git(to, "commit", "--quiet", "--message", f"openrlhf {series.version}")
    tree.git(to, "am", "--quiet", "--whitespace=nowarn", "--", *series.patches)


def export(repository: Path, version: str) -> list[str]:
    """Write the commits after `openrlhf VERSION` as the series of that version; return the names of what changed.

    Raises:
        PatchError: USAGE if that commit is missing, a commit is no patch, or changes are uncommitted.
    """
    if tree.git(repository, "status", "--porcelain").strip():
        raise PatchError(Exit.USAGE, f"{repository} has uncommitted changes", "commit them: one patch is one commit")
    found = tree.git(repository, "log", "-1", "--format=%H", f"--grep=^openrlhf {re.escape(version)}$").decode().strip()
    if not found:
        raise PatchError(Exit.USAGE, f"{repository} has no commit `openrlhf {version}`", "give --version")
    commits = tree.git(repository, "rev-list", "--reverse", f"{found}..HEAD").decode().split()
    contents = dict(_make_patch(repository, commit) for commit in commits)
    digests = {}
    for name, commit in (("pristine", found), ("patched", "HEAD")):
        tree.git(repository, "checkout", "--quiet", "--detach", commit)
        digests[name] = tree.digest(repository / "openrlhf")
        tree.git(repository, "checkout", "--quiet", "-")
    for file in (repository / "openrlhf").rglob("*.py"):
        compile(file.read_text(encoding="utf-8"), str(file), "exec", dont_inherit=True)
    contents["series"] = "".join(f"{name}\n" for name in contents).encode()
    contents["digests.json"] = (json.dumps(digests, indent=2) + "\n").encode()
    return _write(folder(version), contents)


def _write(out: Path, contents: dict[str, bytes]) -> list[str]:
    out.mkdir(exist_ok=True)
    for file in set(out.iterdir()) - {out / name for name in contents}:
        file.unlink()
    old = {name: (out / name).read_bytes() if (out / name).is_file() else b"" for name in contents}
    for name, text in contents.items():
        (out / name).write_bytes(text)
    return [name for name, text in contents.items() if old[name] != text]


def _make_patch(repository: Path, commit: str) -> tuple[str, bytes]:
    """Return the name and the text of the patch of a commit, without what changes from one export to the next."""
    message = tree.git(repository, "log", "-1", "--format=%B", commit).decode()
    subject, _, header = message.strip().partition("\n")
    if not re.fullmatch(r"[a-z0-9_]+", subject) or "Description: " not in header:
        remedy = "its subject must be a name such as `ppo_actor`, its body a header as CONTRIBUTING.md describes it"
        raise PatchError(Exit.USAGE, f"commit {commit[:12]} ({subject}) is no patch", remedy)
    # One line of context: the least of upstream's text that still shows where a hunk belongs.
    diff = tree.git(repository, "diff-tree", "-p", "-U1", "--no-commit-id", "--no-renames", commit)
    diff = re.sub(rb"^(@@ [^@]* @@).*", rb"\1", diff, flags=re.M)
    files = [part.partition(b"\n--- ")[2] for part in re.split(rb"^(?=diff --git )", diff, flags=re.M) if part]
    mail = f"From: {tree.AUTHOR} <{tree.EMAIL}>\nDate: {tree.DATE}\nSubject: {subject}\n\n{header.strip()}\n\n"
    return f"{subject}.patch", mail.encode() + b"".join(b"--- " + part for part in files)
