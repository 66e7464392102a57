"""For authors: a git repository in which each commit is one patch, made from a series and written as one.

The first commit is OpenRLHF's own package, named `openrlhf VERSION`. A later commit's subject is the patch's name
without `.patch`, its body is the patch's header.
"""

import json
import re
import tempfile
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
    for patch in series.patches:
        header = patch.read_text().partition("\n--- ")[0]
        tree.git(to, "apply", "--index", "--whitespace=nowarn", patch)
        tree.git(to, "commit", "--quiet", "--message", f"{patch.stem}\n\n{header}")


def export(repository: Path, version: str) -> list[str]:
    """Write the commits after `openrlhf VERSION` as the series of that version; return the names of what changed.

    Raises:
        PatchError: USAGE if that commit is missing, a commit is no patch, or changes are uncommitted.
    """
    if tree.git(repository, "status", "--porcelain"):
        raise PatchError(Exit.USAGE, f"{repository} has uncommitted changes", "commit them: one patch is one commit")
    with tempfile.TemporaryDirectory(prefix="openrlhf-export-") as scratch:
        clone = Path(scratch)
        tree.git(clone, "clone", "--quiet", repository.resolve(), ".")
        start = tree.git(clone, "log", "-1", "--format=%H", f"--grep=^openrlhf {re.escape(version)}$").strip()
        if not start:
            raise PatchError(Exit.USAGE, f"{repository} has no commit `openrlhf {version}`", "give --version")
        commits = tree.git(clone, "rev-list", "--reverse", f"{start}..HEAD").split()
        contents = dict(_make_patch(clone, commit) for commit in commits)
        patched = tree.digest(clone / "openrlhf")
        tree.git(clone, "checkout", "--quiet", start)
        digests = {"pristine": tree.digest(clone / "openrlhf"), "patched": patched}
    contents |= {"series": "\n".join(contents) + "\n", "digests.json": json.dumps(digests, indent=2) + "\n"}
    out = folder(version)
    out.mkdir(exist_ok=True)
    for file in out.iterdir():
        if file.name not in contents:
            file.unlink()
        elif file.read_text() == contents[file.name]:
            del contents[file.name]
    for name, text in contents.items():
        (out / name).write_text(text)
    return list(contents)


def _make_patch(repository: Path, commit: str) -> tuple[str, str]:
    """Return the name and the text of the patch of a commit, without what changes from one export to the next."""
    name, _, header = tree.git(repository, "log", "-1", "--format=%B", commit).strip().partition("\n")
    if not re.fullmatch(r"[a-z0-9_]+", name) or not header:
        remedy = "its subject must be a name such as `ppo_actor`, its body a header as CONTRIBUTING.md describes it"
        raise PatchError(Exit.USAGE, f"commit {commit[:12]} ({name}) is no patch", remedy)
    # One line of context: the least of upstream's text that still shows where a hunk belongs.
    diff = tree.git(repository, "diff-tree", "-p", "-U1", "--no-commit-id", "--no-renames", commit)
    diff = re.sub(r"^(@@ [^@]* @@).*", r"\1", diff, flags=re.M)
    diff = re.sub(r"^diff --git .*\n(?:.*\n)*?(?=--- )", "", diff, flags=re.M)
    return f"{name}.patch", f"{header.strip()}\n\n{diff}"
