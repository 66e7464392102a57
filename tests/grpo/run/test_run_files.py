import json

import pytest

from grpo.run.run_files import RunFiles
from grpo.stack.problem import UserError


def test_folders_inside_a_run_move_along_with_it_and_others_stay(tmp_path):
    files = RunFiles(tmp_path)
    flags = {"run_dir": "/old/run", "ckpt_path": "/old/run/checkpoints", "save_path": "/disk/final"}
    assert files.find_folder("ckpt_path", {"flags": flags}) == tmp_path / "checkpoints"
    assert str(files.find_folder("save_path", {"flags": flags})) == "/disk/final"
    assert files.find_folder("metrics_dir", {"flags": flags}) == tmp_path, "the default of a run that does not say"


def test_metrics_are_looked_up_beside_the_run_and_then_where_its_configuration_says(tmp_path):
    disk = tmp_path / "disk"
    (tmp_path / "config.json").write_text(json.dumps({"flags": {"metrics_dir": str(disk)}}))
    assert RunFiles(tmp_path).metrics == disk / "metrics.jsonl"
    (tmp_path / "eval.jsonl").touch()
    assert RunFiles(tmp_path).evals == tmp_path / "eval.jsonl"


@pytest.mark.parametrize("text", ["{", "[]", '{"reward": [1]}', '{"flags": {"run_dir": 5}}'])
def test_an_invalid_configuration_names_its_file(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        RunFiles(tmp_path).read_config()
    assert RunFiles(tmp_path).metrics == tmp_path / "metrics.jsonl"


def test_sample_files_are_in_the_order_of_their_steps(tmp_path):
    (tmp_path / "samples").mkdir()
    for name in ("step_10", "step_9", "eval_2", "step_x", "step_9.old"):
        (tmp_path / "samples" / f"{name}.jsonl").touch()
    assert list(RunFiles(tmp_path).sample_files("step")) == [9, 10]
    assert list(RunFiles(tmp_path).sample_files("eval")) == [2]
