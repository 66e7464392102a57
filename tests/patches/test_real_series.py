"""The series of this repository: exact on the installed OpenRLHF, and true about what they rely on."""

import ast
import re
from importlib.metadata import version

import pytest

from patches import digest, find_package, load
from patches.__main__ import main
from patches.install import Installed
from patches.series import ROOT, folder, known_versions

FIELDS = {"Description", "Why", "Relies-On", "Verified-By", "Delete-When"}


@pytest.fixture(scope="module")
def installed() -> Installed:
    return Installed(find_package(), load(version("openrlhf")))


def test_the_patches_lead_from_the_original_files_to_the_installed_ones(installed):
    with installed.build() as built:
        assert digest(built) == digest(installed.package) == installed.series.patched


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


def read_header(version: str, name: str) -> dict[str, str]:
    """The fields of a patch, those of the one that it names as `As` included."""
    header = (folder(version) / name).read_text().partition("\n--- ")[0]
    fields = {name: " ".join(text.split()) for name, text in re.findall(r"^([A-Z][\w-]+):(.*(?:\n .*)*)", header, re.M)}
    if "As" in fields:
        other, _, name = fields["As"].removeprefix("openrlhf-").partition("/")
        fields = read_header(other, name) | fields
    return fields


def test_what_a_patch_relies_on_is_in_the_original_files(installed):
    original = installed.find_original().parent
    for patch in installed.series.patches:
        for part in read_header(installed.series.version, patch.name)["Relies-On"].split(";"):
            path, _, names = part.partition(":")
            defined = list_definitions(ast.parse((original / path.strip()).read_text()))
            missing = {name.strip() for name in names.split(",") if name.strip()} - defined
            assert not missing, f"{patch.name}: {path}"


def test_no_file_of_a_model_runs_as_code(installed):
    """But for a command line that no run imports."""
    files = installed.package.rglob("*.py")
    trusting = [file.name for file in files if re.search(r"trust_remote_code\W+True", file.read_text())]
    assert set(trusting) <= {"batch_inference.py"}


@pytest.mark.parametrize("version_of", known_versions())
def test_each_header_is_whole(version_of):
    patches = load(version_of).patches
    assert patches and set(folder(version_of).glob("*.patch")) == set(patches)
    for path in patches:
        fields = read_header(version_of, path.name)
        assert FIELDS <= fields.keys() <= FIELDS | {"As"}, path.name
        for named in re.findall(r"tests/[\w/]+(?:\.py)?", fields["Verified-By"]):
            assert (ROOT.parent / named).exists(), f"{path.name}: {named}"
