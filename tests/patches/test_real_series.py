"""The patch folders of this repository: consistent, and exact on the installed OpenRLHF."""

import pytest

from patches import PatchError
from patches.errors import Exit
from patches.install import compile_text
from patches.manifest import folder, known_versions
from patches.series import Series
from patches.state import find_target, inspect, installed_version, read_installed


@pytest.mark.parametrize("version", known_versions())
def test_series_manifest_and_patches_agree(version):
    """Every hash in the manifest comes out of the patches, forwards and backwards."""
    series = Series.load(version)
    assert series.patches
    try:
        target = find_target()
        installed = installed_version(target)
    except PatchError as error:
        assert error.code in (Exit.MISSING, Exit.UNKNOWN_VERSION)
        pytest.skip(f"OpenRLHF {version} is not installed here: {error}")
    if installed != version:
        pytest.skip(f"OpenRLHF {installed} is installed, not {version}")
    status = inspect(target, series.manifest)
    assert status.state != "edited", status.message
    pristine = {}
    for record in status.files:
        assert record.position is not None
        text = read_installed(target, record.path)
        pristine[record.path] = series.move(record.path, text, record.position, 0)
    series.check(pristine)
    for path, text in pristine.items():
        compile_text(path, series.move(path, text, 0, len(series.manifest.chain(path)) - 1))


@pytest.mark.parametrize("version", known_versions())
def test_patches_are_as_export_writes_them(version):
    for patch in Series.load(version).patches:
        assert patch.render() == (folder(version) / patch.name).read_bytes()
        assert patch.header
