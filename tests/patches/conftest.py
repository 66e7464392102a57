"""A small `openrlhf` package of our own, three patches on it, and a checkout that holds them."""

import base64
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import patches
from patches import git, series, worktree
from patches.__main__ import main

VERSION = "1.0"
ACTOR = "".join(f"LINE_{i} = {i}\n" for i in range(1, 31)).encode()
PRISTINE = {
    "openrlhf/__init__.py": b"",
    "openrlhf/models/__init__.py": b"",
    "openrlhf/models/actor.py": ACTOR,
    "openrlhf/trainer/__init__.py": b"",
    "openrlhf/trainer/loop.py": b"def step():\n    return 'stock'",  # no newline at the end
    "openrlhf/trainer/old.py": b"GONE = True\n",
    "openrlhf/untouched.py": b"KEPT = True\n",
}
ACTOR_1 = ACTOR.replace(b"LINE_3 = 3\n", b"LINE_3 = 103\nMORE = 1\n")
ACTOR_2 = ACTOR_1.replace(b"LINE_20 = 20\n", b"LINE_20 = 20\nEXTRA = 1\n")
HEADER = """\
Description: {}.
 A second line.
Relies-On: openrlhf/trainer/loop.py: step
Verified-By: tests/patches/test_install.py.
Origin: vendor
Forwarded: no"""


@dataclass(frozen=True)
class Change:
    """One patch as an author has it: its name, its header, and each file before and after."""

    name: str
    header: str
    files: dict[str, tuple[bytes | None, bytes | None]]


CHANGES = [
    Change(
        "first",
        HEADER.format("the first"),
        {"openrlhf/models/actor.py": (ACTOR, ACTOR_1), "openrlhf/hooks/new.py": (None, b"NEW = 1\n")},
    ),
    Change(
        "second",
        HEADER.format("the second") + "\n\n\n# A line that git would take for a comment.",
        {
            "openrlhf/models/actor.py": (ACTOR_1, ACTOR_2),
            "openrlhf/trainer/loop.py": (
                PRISTINE["openrlhf/trainer/loop.py"],
                b"def step():\n    return 'patch'",
            ),
        },
    ),
    Change(
        "third",
        HEADER.format("the third"),
        {"openrlhf/trainer/old.py": (b"GONE = True\n", None), "openrlhf/hooks/empty.py": (None, b"")},
    ),
]


def write_package(site: Path, tree: dict[str, bytes], version: str) -> Path:
    """Lay a package out as an installer does; returns the `openrlhf` folder."""
    info = f"openrlhf-{version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: openrlhf\nVersion: {version}\nRequires-Dist: torch==2.{version}\n".encode()
    )
    files = tree | {f"{info}/METADATA": metadata}
    rows = []
    for path, text in files.items():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
        code = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={code},{len(text)}\n")
    (site / info / "RECORD").write_text("".join(rows) + f"{info}/RECORD,,\n")
    return site / "openrlhf"


def snapshot(site: Path) -> dict[str, bytes]:
    """Every file below `site`, leftovers included; without bytecode, RECORD, and the kept originals."""
    files = [p for p in site.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    left = [p for p in files if p.name != "RECORD" and ".openrlhf-originals" not in p.parts]
    return {p.relative_to(site).as_posix(): p.read_bytes() for p in left}


def write_series(version: str, changes: list[Change], pristine: dict[str, bytes] = PRISTINE) -> None:
    """Write the patch folder of a version, by way of a git worktree."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work"
        worktree.make(work, version, pristine, None)
        for change in changes:
            git.write(work, {path: new for path, (_, new) in change.files.items()})
            git.git(work, "add", "--all", "--force")
            git.git(work, "commit", "--cleanup=verbatim", "-qm", f"{change.name}\n\n{change.header}")
        worktree.export(work, version, version, {}, f"HEAD~{len(changes)}", series.folder(version))


@dataclass(frozen=True)
class World:
    """An installed package (`target`) and a checkout with the tool and the patches."""

    target: Path
    checkout: Path

    @property
    def site(self) -> Path:
        return self.target.parent

    def make_env(self) -> dict[str, str]:
        temporary = self.checkout.parent / "temporary"  # what a killed process leaves goes with the test's folder
        temporary.mkdir(exist_ok=True)
        own = {"PYTHONPATH": str(self.checkout), "PYTHON": sys.executable, "TMPDIR": str(temporary)}
        return {**os.environ, **own}

    def run(
        self, *words: str, cwd: Path | None = None, path: Path | None = None, **options
    ) -> subprocess.CompletedProcess[str]:
        """A real `python -m patches` process on the target; `path` replaces PATH."""
        command = [sys.executable, "-P", "-m", "patches", *words, "--target", str(self.target)]
        env = self.make_env() | ({"PATH": str(path)} if path else {})
        return subprocess.run(command, env=env, cwd=cwd, text=True, capture_output=True, timeout=60, **options)

    def drive(self, action: str, number: int, *words: str) -> "Driven":
        """Start the command line in a process in which `action` is done just before write operation `number`."""
        return Driven(action, number, [*words, "--target", str(self.target)], Path(self.make_env()["TMPDIR"]))

    def call(self, *words: str) -> int:
        """The same command line in this process."""
        return main([*words, "--target", str(self.target)])

    def keep(self) -> Callable[[], None]:
        """Return a function that restores the installation to its present state."""
        copy = self.site.with_name("kept")
        shutil.copytree(self.site, copy)

        def bring_back() -> None:
            shutil.rmtree(self.site)
            shutil.copytree(copy, self.site)

        return bring_back

    def read_status(self) -> dict:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.call("status", "--json")
        return json.loads(printed.getvalue())


WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.utime", "os.chown"}


class Driven(multiprocessing.get_context("fork").Process):  # type: ignore[name-defined,misc]
    """The command line in a fork of this process: "kill", "fail", "slow" or "none" before a write operation."""

    def __init__(self, action: str, number: int, words: list[str], folder: Path) -> None:
        super().__init__()
        self.action, self.number, self.words, self.folder = action, number, words, folder
        self.files = [folder / f"{id(self)}.{name}" for name in ("out", "errors")]
        self.start()

    def run(self) -> None:
        for descriptor, file in enumerate(self.files, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
        tempfile.tempdir = str(self.folder)
        sys.addaudithook(self._before)
        sys.exit(main(self.words))

    def _before(self, event: str, args: tuple) -> None:
        if self.action == "slow":
            is_counted = event == "os.rename"
        elif event == "open":
            is_counted = bool((args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            is_counted = event in WRITES
        self.number -= is_counted
        if is_counted and self.number == -1:
            print(self.action, event, file=sys.stderr, flush=True)
            if self.action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.action == "fail":
                raise OSError(28, "No space left on device")
            else:
                time.sleep(1)

    def end(self) -> tuple[int | None, str, str]:
        """Wait; return the exit code and what was printed to stdout and stderr."""
        self.join(60)
        self.kill()
        out, errors = (file.read_text() for file in self.files)
        return self.exitcode, out, errors


@pytest.fixture(scope="session")
def stock_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the tool and the patches; tests copy it, since git takes a second to write the patches."""
    checkout = tmp_path_factory.mktemp("stock") / "checkout"
    (checkout / "patches").mkdir(parents=True)
    for source in Path(patches.__file__).parent.glob("*.py"):
        shutil.copy(source, checkout / "patches")
    shutil.copy(Path(patches.__file__).parent.parent / "apply_patches.sh", checkout)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(series, "ROOT", checkout / "patches")
        write_series(VERSION, CHANGES)
    return checkout


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stock_checkout: Path) -> World:
    target = write_package(tmp_path / "site", PRISTINE, VERSION)
    checkout = shutil.copytree(stock_checkout, tmp_path / "checkout")
    monkeypatch.setattr(series, "ROOT", checkout / "patches")
    return World(target, checkout)


@pytest.fixture
def pristine_tree(world: World) -> dict[str, bytes]:
    """The pristine installation."""
    return snapshot(world.site)


@pytest.fixture
def patched_tree(world: World, pristine_tree: dict[str, bytes]) -> dict[str, bytes]:
    """The installation as it must be once patched."""
    tree = dict(pristine_tree)
    for change in CHANGES:
        for path, (_, new) in change.files.items():
            tree.pop(path, None)
            if new is not None:
                tree[path] = new
    return tree


@pytest.fixture
def look() -> Callable[[Path], dict[str, bytes]]:
    return snapshot


@pytest.fixture
def make_wheel() -> Callable[[Path, dict[str, bytes], str], Path]:
    """Writes a wheel with the `openrlhf/...` files of a tree, laid out as OpenRLHF's wheels are."""

    def make(folder: Path, tree: dict[str, bytes], version: str) -> Path:
        path = folder / f"openrlhf-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in tree.items():
                if name.startswith("openrlhf/"):
                    archive.writestr(f"openrlhf-{version}.data/purelib/{name}", text)
            metadata = f"Metadata-Version: 2.1\nName: openrlhf\nVersion: {version}\nRequires-Dist: torch==2.{version}\n"
            archive.writestr(f"openrlhf-{version}.dist-info/METADATA", metadata)
            tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            archive.writestr(f"openrlhf-{version}.dist-info/WHEEL", tags)
        return path

    return make


@pytest.fixture
def make_package() -> Callable[[Path, dict[str, bytes], str], Path]:
    return write_package
