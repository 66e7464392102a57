"""A byte that changed in any file of a real step, as the trainer saved it: every reader refuses, and names the file."""

import shutil
from pathlib import Path

import pytest

from eval.checks import read_adapter
from grpo.checkpoint.digests import NAME
from grpo.launch import resume
from grpo.model import model_files
from grpo.run.run_files import saved_steps
from grpo.stack.problem import UserError
from scripts import export_model

ADAPTER = ("adapter_config.json", "adapter_model.safetensors", NAME)
TRAINER = ("rank_0.safetensors", "rank_1.safetensors", "state.safetensors", NAME)
FILES = [*(f"adapter/{name}" for name in ADAPTER), *(f"trainer/{name}" for name in TRAINER)]
PLACES = (0.0, 0.5)  # of a file; test_digests.py changes every byte


@pytest.fixture(scope="module")
def saved_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture
def checkpoints(saved_folder: Path, checkpoint: Path, run_ranks, tmp_path: Path) -> Path:
    """A copy of the steps 0 and 1 that two ranks have saved."""
    if not saved_steps(saved_folder):
        run_ranks(2, checkpoint, saved_folder, 1, "", 600, 4, "zero3", script="checkpoint/trainer_ranks.py")
    return shutil.copytree(saved_folder, tmp_path / "checkpoints")


def collect_refusals(step: Path, base: Path, out: Path, capsys, of_adapter: bool) -> dict[str, str]:
    """Return what each reader says of a damaged step."""
    said = {}
    try:
        assert resume.find_newest_whole(step.parent, base) == step.with_name("step_0")
    except UserError as error:
        said["resume"] = str(error)
    if of_adapter:
        words = ["--model", str(base), "--adapter", str(step / "adapter"), "--out", str(out)]
        assert export_model.main(words) == 2 and not out.exists()
        said["export"] = capsys.readouterr().err
        with pytest.raises(model_files.CheckpointError) as refused:
            read_adapter(step / "adapter", model_files.read(base))
        said["evaluate"] = str(refused.value)
    return said


def expect_refusals(said: dict[str, str], file: str) -> None:
    """Every reader names the file, and that another step may be whole."""
    for reader, text in said.items():
        name = file if reader == "resume" else Path(file).name
        assert f"{name} " in text and "another step" in text, (reader, text)


@pytest.mark.timeout(900)
def test_a_saved_step_is_complete(checkpoints: Path, checkpoint: Path) -> None:
    step = checkpoints / "step_1"
    assert sorted(str(path.relative_to(step)) for path in step.rglob("*") if path.is_file()) == sorted(FILES)
    assert resume.find_newest_whole(step.parent, checkpoint) == step
    assert read_adapter(step / "adapter", model_files.read(checkpoint)).projections[-1] == "experts"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES)
def test_one_changed_byte_anywhere_is_detected(
    checkpoints: Path, checkpoint: Path, tmp_path: Path, capsys, file: str
) -> None:
    step = checkpoints / "step_1"
    whole = (step / file).read_bytes()
    for offset in PLACES:
        changed = bytearray(whole)
        changed[int(offset * (len(whole) - 1))] ^= 1
        (step / file).write_bytes(changed)
        expect_refusals(collect_refusals(step, checkpoint, tmp_path / "out", capsys, file.startswith("adapter")), file)
    (step / file).write_bytes(whole[:-1])
    expect_refusals(collect_refusals(step, checkpoint, tmp_path / "out", capsys, file.startswith("adapter")), file)
    (step / file).write_bytes(whole)
    assert resume.find_newest_whole(step.parent, checkpoint) == step


@pytest.mark.timeout(900)
def test_step_of_an_earlier_version_is_read_with_a_note(checkpoints: Path, checkpoint: Path, tmp_path, capsys) -> None:
    step = checkpoints / "step_1"
    for part in ("adapter", "trainer"):
        (step / part / NAME).unlink()
    assert resume.find_newest_whole(step.parent, checkpoint) == step
    words = ["--model", str(checkpoint), "--adapter", str(step / "adapter"), "--out", str(tmp_path / "out")]
    assert export_model.main([*words, "--experts", "bf16"]) == 0
    assert f"{step / 'adapter'} cannot be verified" in capsys.readouterr().out
