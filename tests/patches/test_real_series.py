"""The patch folders of this repository: whole, exact on the installed OpenRLHF, and true about what they rely on."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from patches import PatchError, anchors
from patches.__main__ import main
from patches.errors import Exit
from patches.package import find_target, installed_version
from patches.series import Series, folder, known_versions
from patches.texts import patched_texts, pristine_texts

TRUSTS = r"trust_remote_code\W+True"


@pytest.mark.parametrize("version", known_versions())
def test_the_series_is_whole(version):
    series = Series.load_checked(version)
    assert series.patches and series.patched.keys() & series.pristine.keys()


@pytest.fixture(scope="module")
def target():
    """The installed package."""
    try:
        return find_target()
    except PatchError as error:
        assert error.code == Exit.MISSING
        pytest.skip(f"OpenRLHF is not installed here: {error}")


def test_the_patches_lead_from_the_pristine_files_to_the_manifests(target):
    series = Series.load_checked(installed_version(target))
    assert patched_texts(target, series, None).keys() == series.patched.keys()


def test_every_anchor_of_a_patch_is_in_the_pristine_files(target):
    series = Series.load_checked(installed_version(target))
    texts = pristine_texts(target, series, list(series.pristine), None)
    count = 0
    for patch in series.files():
        for path, name in anchors.find_anchors(patch):
            assert anchors.source(texts.get(path), name), f"{patch.name}: {path}: {name}"
            count += 1
    assert count > 2 * len(series.patches)


def test_what_our_classes_replace_is_what_was_reviewed(target):
    """A version in which a class or function differs has a fix, or a feature, that no longer reaches us.

    `python -m patches drift --changes` shows it: review it, then pin it.
    """
    version = installed_version(target)
    series = Series.load_checked(version)
    texts = pristine_texts(target, series, list(series.pristine), None)
    found = {}
    for patch in series.files():
        for path, name in anchors.find_anchors(patch) if patch.stem in ("ppo_actor", "metrics_trainer") else ():
            if not name.startswith("--"):
                where, code = f"{path.removeprefix('openrlhf/')}: {name}", anchors.source(texts.get(path), name)
                found[where] = hashlib.sha256(code.encode()).hexdigest()[:16]
    assert found == json.loads((Path(__file__).parent / "replaced.json").read_text())[version]


def test_no_file_of_a_model_runs_as_code(target):
    """But for a command line that no run imports."""
    trusting = {str(f.relative_to(target)) for f in target.rglob("*.py") if re.search(TRUSTS, f.read_text())}
    assert trusting <= {"cli/batch_inference.py"}


def test_patches_are_as_export_writes_them(target, tmp_path):
    version = installed_version(target)
    kept = {path.name: path.read_bytes() for path in folder(version).iterdir()}
    assert main(["import", "--to", str(tmp_path / "work"), "--version", version]) == 0
    assert main(["export", "--from", str(tmp_path / "work"), "--version", version]) == 0
    assert {path.name: path.read_bytes() for path in folder(version).iterdir()} == kept


@pytest.mark.parametrize("version", known_versions())
def test_headers_follow_dep_3(version):
    for path in Series.load_checked(version).files():
        header = path.read_text().partition("\n--- ")[0]
        fields = re.findall(r"^([A-Z][\w-]+): *\S", header, re.MULTILINE)
        wanted = {
            "Description",
            "Why",
            "Relies-On",
            "Verified-By",
            "Origin",
            "Forwarded",
            "Applied-Upstream",
            "Delete-When",
        }
        assert wanted <= set(fields), path.name
        assert re.search(r"^Forwarded: ((no|not-needed); \S.*|https?://\S+)$", header, re.MULTILINE), path.name
