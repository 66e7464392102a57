"""An installation of a small OpenRLHF 1.0 and a checkout with its series of two patches."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from patches import authors, install, series, tree
from patches.__main__ import main

PRISTINE = {"__init__.py": "", "trainer/loop.py": "def step():\n    return 'stock'\n", "kept.py": "KEPT = True\n"}
PATCHED = PRISTINE | {"trainer/loop.py": "def step():\n    return 'patched'\n", "new.py": "NEW = 2\n"}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def look(package: Path) -> dict[str, str]:
    files = (file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(package).as_posix(): file.read_text() for file in files}


def commit(work: Path, name: str, files: dict[str, str]) -> None:
    write(work / "openrlhf", files)
    tree.git(work, "add", "--all")
    tree.git(work, "commit", "--quiet", "--message", f"{name}\n\nDescription: a change")


def install_package(site: Path) -> None:
    write(site / "openrlhf", PRISTINE)
    write(site, {"openrlhf-1.0.dist-info/METADATA": "Name: openrlhf\nVersion: 1.0\n"})


@dataclass
class World:
    site: Path
    checkout: Path

    @property
    def package(self) -> Path:
        return self.site / "openrlhf"

    def call(self, *words: object) -> int:
        return main([*map(str, words), "--target", str(self.package)])

    def run(self, *words: str, before: str) -> tuple[int, str]:
        """The command line in a process of its own, after some code."""
        code = f"import sys, pathlib; from patches import series; series.ROOT = pathlib.Path({str(series.ROOT)!r})\n"
        code += (
            f"{before}\nfrom patches.__main__ import main\nsys.exit(main({[*words, '--target', str(self.package)]}))"
        )
        # What a killed command leaves behind lies in the test's folder.
        environment = {"PYTHONPATH": str(Path(install.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
        environment["TMPDIR"] = str(self.site.parent)
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def read_status(self, capsys) -> dict:
        capsys.readouterr()
        self.call("status", "--json")
        return json.loads(capsys.readouterr().out)


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    world = World(tmp_path / "site", tmp_path / "checkout")
    install_package(world.site)
    world.checkout.mkdir()
    monkeypatch.setattr(series, "ROOT", world.checkout)
    authors.make(tmp_path / "made", world.package, series.Series("1.0", [], "", ""))
    commit(tmp_path / "made", "first", PATCHED | {"new.py": "NEW = 1\n"})
    commit(tmp_path / "made", "second", PATCHED)
    authors.export(tmp_path / "made", "1.0")
    return world
