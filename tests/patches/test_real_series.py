"""The series of this repository: exact on the installed OpenRLHF, and true about what they rely on."""

import ast
import re
from importlib.metadata import version

import pytest

from patches import digest, find_package, load
from patches.__main__ import main
from patches.install import Installed
from patches.series import ROOT, folder, known_versions

FIELDS = {*("Description", "Why", "Relies-On", "Verified-By", "Origin", "Forwarded", "Applied-Upstream", "Delete-When")}


@pytest.fixture(scope="module")
def installed() -> Installed:
    return Installed(find_package(), load(version("openrlhf")))


def test_the_patches_lead_from_the_original_files_to_the_installed_ones(installed, tmp_path):
    assert digest(installed.build(tmp_path)) == digest(installed.package) == installed.series.patched


def test_patches_are_as_export_writes_them(installed, tmp_path, monkeypatch):
    kept = {file.name: file.read_bytes() for file in folder(installed.series.version).iterdir()}
    assert main(["import", "--to", str(tmp_path / "work")]) == 0
    monkeypatch.setattr("patches.series.ROOT", tmp_path)
    assert main(["export", "--from", str(tmp_path / "work")]) == 0
    assert {file.name: file.read_bytes() for file in folder(installed.series.version).iterdir()} == kept


def list_definitions(node: ast.AST, prefix: str = "") -> set[str]:
    """The functions, classes, assigned names and flags of a file."""
    found = set()
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(prefix + child.name)
            inside = f"{prefix}{child.name}."
        elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            found.add(prefix + child.targets[0].id)
        elif isinstance(child, ast.Call) and child.args and isinstance(child.args[0], ast.Constant):
            found.add(str(child.args[0].value))
        found |= list_definitions(child, inside)
    return found


def test_what_a_patch_relies_on_is_in_the_original_files(installed):
    original, count = installed.find_original().parent, 0
    for patch in installed.series.patches:
        match = re.search(r"^Relies-On: *((?:.*)(?:\n .*)*)", patch.read_text(), re.MULTILINE)
        assert match, patch.name
        for path, _, names in (part.partition(":") for part in " ".join(match[1].split()).split(";")):
            for name in (name.strip() for name in names.split(",") if name.strip()):
                assert name in list_definitions(ast.parse((original / path.strip()).read_text())), (
                    f"{patch.name}: {name}"
                )
                count += 1
    assert count > 2 * len(installed.series.patches)


def test_no_file_of_a_model_runs_as_code(installed):
    """But for a command line that no run imports."""
    files = installed.package.rglob("*.py")
    trusting = [file.name for file in files if re.search(r"trust_remote_code\W+True", file.read_text())]
    assert set(trusting) <= {"batch_inference.py"}


@pytest.mark.parametrize("name", known_versions())
def test_headers_follow_dep_3(name):
    assert load(name).patches and not set(folder(name).glob("*.patch")) - set(load(name).patches)
    for path in load(name).patches:
        header = path.read_text().partition("\n--- ")[0]
        assert set(re.findall(r"^([A-Z][\w-]+): *\S", header, re.MULTILINE)) >= FIELDS, path.name
        for named in re.findall(r"tests/[\w/]+(?:\.py)?", header):
            assert (ROOT.parent / named).exists(), f"{path.name}: {named}"
        assert re.search(r"^Forwarded: ((no|not-needed); \S.*|https?://\S+)$", header, re.MULTILINE), path.name


def test_every_reproduction_is_named_by_the_patch_that_fixes_it():
    texts = [path.read_text() for name in known_versions() for path in load(name).patches]
    named = {match for text in texts for match in re.findall(r"patches/reproductions/(\w+)\.py", text)}
    assert named == {script.stem for script in (ROOT / "reproductions").glob("*.py")}
