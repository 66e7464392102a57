"""An installation of a small OpenRLHF 1.0 and a checkout with its series of two patches."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from patches import authors, install, series, tree
from patches.__main__ import main

PRISTINE = {"__init__.py": "", "trainer/loop.py": "def step():\n    return 'stock'\n", "kept.py": "KEPT = True\n"}
HEADER = "Description: a change\nWhy: a test\n"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def look(package: Path) -> dict[str, str]:
    files = (file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(package).as_posix(): file.read_text() for file in files}


@dataclass
class World:
    site: Path
    checkout: Path

    @property
    def package(self) -> Path:
        return self.site / "openrlhf"

    @property
    def loop(self) -> Path:
        return self.package / "trainer" / "loop.py"

    def call(self, *words: object) -> int:
        return main([*map(str, words), "--target", str(self.package)])

    def start(self, *words: str, before: str = "") -> subprocess.Popen[str]:
        """The command line in a process of its own, after some code."""
        command = [*words, "--target", str(self.package)]
        code = f"import sys, pathlib; from patches import series; series.ROOT = pathlib.Path({str(series.ROOT)!r})\n"
        code += f"{before}\nfrom patches.__main__ import main\nsys.exit(main({command!r}))"
        root = Path(install.__file__).parents[1]
        words = [sys.executable, "-P", "-c", code]
        environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read_status(self, capsys) -> dict:
        capsys.readouterr()
        self.call("status", "--json")
        return json.loads(capsys.readouterr().out)


def commit(work: Path, name: str, files: dict[str, str]) -> None:
    write(work / "openrlhf", files)
    tree.git(work, "add", "--all")
    tree.git(work, "commit", "--quiet", "--message", f"{name}\n\n{HEADER}")


def install_package(site: Path, version: str = "1.0") -> None:
    write(site / "openrlhf", PRISTINE)
    write(site, {f"openrlhf-{version}.dist-info/METADATA": f"Name: openrlhf\nVersion: {version}\n"})


@pytest.fixture(scope="session")
def stock(tmp_path_factory) -> World:
    world = World(tmp_path_factory.mktemp("stock") / "site", tmp_path_factory.mktemp("checkout"))
    install_package(world.site)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(series, "ROOT", world.checkout)
        work = world.checkout.parent / f"{world.checkout.name}-work"
        empty = series.Series("1.0", [], "", "")
        authors.make(work, world.package, empty)
        commit(work, "first", {"trainer/loop.py": "def step():\n    return 'patched'\n", "new.py": "NEW = 1\n"})
        commit(work, "second", {"new.py": "NEW = 2\n"})
        authors.export(work, "1.0")
    return world


@pytest.fixture
def world(stock, tmp_path, monkeypatch) -> World:
    shutil.copytree(stock.site, tmp_path / "site")
    shutil.copytree(stock.checkout, tmp_path / "checkout")
    monkeypatch.setattr(series, "ROOT", tmp_path / "checkout")
    return World(tmp_path / "site", tmp_path / "checkout")


PATCHED = PRISTINE | {"trainer/loop.py": "def step():\n    return 'patched'\n", "new.py": "NEW = 2\n"}
