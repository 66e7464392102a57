"""The model card says what a run did, and nothing of the machine or of its user's files."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from grpo.checkpoint import adapter_files
from scripts import export_model

SECRET = "customer"  # in each name that is private


@pytest.fixture
def run(make_run, trained_adapter: Path, tmp_path: Path):
    """A finished run with an adapter after step 10 and a final one."""
    private = tmp_path / SECRET
    made = make_run(
        f"{SECRET}-1", pretrain=str(private / "model"), lora_rank=4, target_modules=["q_proj", "o_proj"],
        adapter=str(private / "adapter"), prompt_data=str(private / "train.jsonl"),
    )  # fmt: skip
    (made.folder / "env.json").write_text(json.dumps({"packages": {"vllm": "0.15.0"}, "host": SECRET}))
    for step in (10, 20):
        made.step(step)
    for step, value in ((0, 0.4), (10, 0.5), (20, 0.6)):
        made.evaluate(step, value)
    for folder in (made.folder / "final", made.folder / "checkpoints" / "step_10" / "adapter"):
        shutil.copytree(trained_adapter, folder)
        settings = json.loads((folder / adapter_files.CONFIG).read_text())
        settings["base_model_name_or_path"] = str(private / "model")
        (folder / adapter_files.CONFIG).write_text(json.dumps(settings))
    return made


def export(checkpoint: Path, adapter: Path, out: Path, *more: str) -> tuple[dict, str]:
    """Export with a card; return its fields and its text."""
    assert export_model.main(["--model", str(checkpoint), "--adapter", str(adapter), "--out", str(out), *more]) == 0
    head, body = (out / "README.md").read_text().removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(head), body


def test_a_card_has_scores_settings_and_versions_and_nothing_private(run, checkpoint, tmp_path):
    out = tmp_path / "upload"
    fields, body = export(checkpoint, run.folder / "final", out, "--unmerged", "--card")
    assert (fields["library_name"], fields["license"], "base_model" in fields) == ("peft", "apache-2.0", False)
    for part in ("step 0: 0.400 (n=18)", "step 20: 0.600", "- lora_rank: 4", "vllm 0.15.0", "after 20 steps"):
        assert part in body
    assert "step 10:" not in body
    for file in out.iterdir():
        content = file.read_bytes()
        assert SECRET.encode() not in content and str(tmp_path).encode() not in content, file.name


def test_a_checkpoints_card_is_of_its_step_and_a_merged_models_card_says_so(run, checkpoint, tmp_path):
    adapter = run.folder / "checkpoints" / "step_10" / "adapter"
    settings = json.loads((adapter / adapter_files.CONFIG).read_text())
    (adapter / adapter_files.CONFIG).write_text(json.dumps(settings | {"base_model_name_or_path": "owner/gpt-oss"}))
    fields, body = export(checkpoint, adapter, tmp_path / "merged", "--card", "--license", "mit")
    assert (fields["base_model"], fields["library_name"], fields["license"]) == ("owner/gpt-oss", "transformers", "mit")
    assert "after 10 steps" in body and "step 10: 0.500" in body and "step 20" not in body


def test_a_card_needs_a_run_and_is_refused_before_anything_is_written(checkpoint, trained_adapter, tmp_path):
    words = ["--model", str(checkpoint), "--adapter", str(trained_adapter), "--out", str(tmp_path / "out")]
    assert export_model.main([*words, "--card"]) == 2
    assert export_model.main([*words, "--unmerged", "--experts", "bf16"]) == 2
    assert not (tmp_path / "out").exists()
