"""OpenRLHF's own files from an installation without kept originals, by taking earlier releases of the series back."""

import functools
import io
import shutil
import tarfile
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
    installed = {path: read_installed(target, path) for path in paths}
    return _recover(tuple(sorted(installed.items())), series.version, tuple(sorted(series.pristine.items())))


@functools.cache
def _recover(
    installed: tuple[tuple[str, bytes | None], ...], version: str, pristine: tuple[tuple[str, str], ...]
) -> dict[str, bytes | None]:
    wanted, recovered = dict(installed), {}
    for files in _releases(version):
        if not wanted:
            break
        only = (f"--include={path}" for path in wanted)
        after, _ = git.apply(wanted, files[::-1], "--reverse", "--reject", *only)
        for path in list(wanted):
            if sha256(after[path]) == dict(pristine).get(path):
                recovered[path] = after[path]
                del wanted[path]
    return recovered


def _releases(version: str) -> Iterator[list[Path]]:
    try:
        yield Series.load_checked(version).files()
    except PatchError as error:
        if error.code != Exit.BAD_SERIES:
            raise
    here = folder(version)
    root, path = here.parents[1], here.relative_to(here.parents[1]).as_posix()
    commits = git.git(root, "log", "--format=%H", "--", path, fails=True).decode().split()
    for commit in commits:
        archive = git.git(root, "archive", commit, path, fails=True)
        with tempfile.TemporaryDirectory(prefix="openrlhf-release-") as name:
            with tarfile.open(fileobj=io.BytesIO(archive or bytes(1024))) as files:
                files.extractall(name, filter="data")
            if (Path(name) / path / "series").is_file():
                yield [Path(name) / path / patch for patch in read_order(Path(name) / path / "series")]
