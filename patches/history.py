"""OpenRLHF's own files from an installation without kept originals, by taking earlier releases of the series back."""

import functools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from patches import git
from patches.errors import Exit, PatchError
from patches.package import read_installed
from patches.series import Series, folder, read_order, sha256


def recover(target: Path, series: Series, paths: list[str]) -> dict[str, bytes | None]:
    """Return OpenRLHF's own text for each path that some release of the series, in this repository, explains.

    A text counts only if its hash is the wheel's. The series itself comes first, then every commit that changed it.
    """
    if not paths or not shutil.which("git"):
        return {}  # then they count as edited by hand, and nothing replaces them
    wanted = tuple((path, read_installed(target, path), series.pristine.get(path)) for path in paths)
    return _recover(wanted, series.version)


@functools.cache
def _recover(wanted: tuple[tuple[str, bytes | None, str | None], ...], version: str) -> dict[str, bytes | None]:
    pristine = {path: digest for path, _, digest in wanted}
    recovered: dict[str, bytes | None] = {}
    for files in _releases(version):
        left: dict[str, bytes | None] = {path: text for path, text, _ in wanted if path not in recovered}
        if not left:
            break
        after, _ = git.apply(left, files[::-1], "--reverse", "--reject", *(f"--include={path}" for path in left))
        recovered |= {path: after[path] for path in left if sha256(after[path]) == pristine[path]}
    return recovered


def _releases(version: str) -> Iterator[list[Path]]:
    """Yield the patches of the present series, and of each earlier commit that changed it."""
    try:
        yield Series.load_checked(version).files()
    except PatchError as error:
        if error.code != Exit.BAD_SERIES:
            raise
    root = folder(version).parents[1]
    path = folder(version).relative_to(root)
    for commit in git.git(root, "log", "--format=%H", "--", str(path), fails=True).decode().split():
        with tempfile.TemporaryDirectory(prefix="openrlhf-release-") as name:
            release = Path(name) / path
            words = ("restore", "--worktree", "--source", commit, "--", str(path))
            git.attempt(root, *words, env={"GIT_WORK_TREE": name, "GIT_INDEX_FILE": f"{name}/index"})
            if (release / "series").is_file():
                yield [release / patch for patch in read_order(release / "series")]
