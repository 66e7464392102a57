"""The model card says what a run did, and nothing of the machine or of its user's files."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from grpo.checkpoint import adapter_files
from grpo.launch.run_dir import data_digest
from grpo.run.run_files import RunFiles
from scripts import export_model, model_card

SECRET = "customer"  # in each name that is private


@pytest.fixture
def run(make_run, trained_adapter: Path, tmp_path: Path):
    """A finished run with an adapter after step 10 and a final one, which PEFT's own configuration describes."""
    private = tmp_path / SECRET
    private.mkdir()
    problems = [{"prompt": "p", "label": "1", "datasource": source} for source in ("aime", "aime", f"/x/{SECRET}/math")]
    (private / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    (private / "eval.jsonl").write_text(json.dumps({"prompt": "q", "label": "1", "datasource": "held"}) + "\n")
    files = {"prompt_data": str(private / "train.jsonl"), "eval_dataset": str(private / "eval.jsonl")}
    made = make_run(
        f"{SECRET}-1", pretrain=str(private / "model"), lora_rank=4, lora_alpha=8, actor_learning_rate=1e-6,
        target_modules=["q_proj", "o_proj"], init_kl_coef=0.001, eval_temperature=1.0, adapter=str(private / "adapter"),
        template_variables=SECRET, remote_rm_url=str(private / "reward_func.py"), **files,
    )  # fmt: skip
    config = json.loads((made.folder / "config.json").read_text())
    config |= {"data_sha256": {flag: data_digest(Path(file)) for flag, file in files.items()}}
    config |= {"adapter_sha256": "12ab", "judge": {"JUDGE": "1", "CORRECTNESS_WEIGHT": "0.6", "QUALITY_WEIGHT": "0.4"}}
    config["judge"]["JUDGE_MODELS"] = "gemini-a gemini-b"
    (made.folder / "config.json").write_text(json.dumps(config))
    (made.folder / "env.json").write_text(json.dumps({"packages": {"vllm": "0.15.0", "peft": "0.1"}, "host": SECRET}))
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
    text = (out / "README.md").read_text()
    head, body = text.removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(head), body


def test_a_card_has_scores_data_settings_and_versions_and_nothing_private(run, checkpoint, tmp_path) -> None:
    out = tmp_path / "upload"
    fields, body = export(checkpoint, run.folder / "final", out, "--unmerged", "--card")
    assert (fields["library_name"], fields["license"], "base_model" in fields) == ("peft", "apache-2.0", False)
    for line in (
        "| 0 | 0.400 [0.300, 0.500] | 18 |",
        "| 20 | 0.600 [0.500, 0.700] | 18 |",
        "- training: 3 problems (aime 2, math 1)",
        "- held out: 1 problem (held 1)",
        "0.6 x correctness + 0.4 x quality, judged by gemini-a gemini-b.",
        "- LORA_RANK: 4",
        "- TARGET_MODULES: q_proj o_proj",
        "- LEARNING_RATE: 1e-06",
        "- KL_COEF: 0.001",
        "- started from the adapter with sha256 12ab",
        "- vllm 0.15.0",
        f"- peft {json.loads((out / adapter_files.CONFIG).read_text())['peft_version']}",
    ):
        assert line in body.splitlines(), line
    assert "after 20 steps" in body and "| 10 |" not in body
    for file in out.iterdir():
        content = file.read_bytes()
        assert SECRET.encode() not in content and str(tmp_path).encode() not in content, file.name


def test_a_checkpoints_card_is_of_its_step_and_a_merged_models_card_says_so(run, checkpoint, tmp_path) -> None:
    adapter = run.folder / "checkpoints" / "step_10" / "adapter"
    settings = json.loads((adapter / adapter_files.CONFIG).read_text())
    (adapter / adapter_files.CONFIG).write_text(json.dumps(settings | {"base_model_name_or_path": "owner/gpt-oss"}))
    fields, body = export(checkpoint, adapter, tmp_path / "merged", "--card", "--license", "mit")
    assert fields["base_model"] == "owner/gpt-oss" and fields["base_model_relation"] == "finetune"
    assert (fields["library_name"], fields["license"]) == ("transformers", "mit")
    assert "after 10 steps" in body and "| 10 | 0.500 [0.400, 0.600] | 18 |" in body and "| 20 |" not in body
    assert adapter_files.read(adapter) and (tmp_path / "merged" / "config.json").is_file()


def test_data_that_has_changed_since_is_only_counted(run, checkpoint, tmp_path) -> None:
    config = json.loads((run.folder / "config.json").read_text())
    Path(config["flags"]["prompt_data"]).write_text("{}\n")
    (run.folder / "config.json").write_text(json.dumps(config | {"plan": {"steps": 40, "prompts": 1024}}))
    _, body = export(checkpoint, run.folder / "final", tmp_path / "out", "--unmerged", "--card")
    assert "- training: 1,024 problems" in body.splitlines()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment": {"ENVIRONMENT": f"python /{SECRET}/mine.py"}}, "python, one of its authors"),
        ({"flags": {"remote_rm_url": f"/{SECRET}/user_reward.py"}}, "A custom Python reward function."),
        ({"flags": {"remote_rm_url": f"http://{SECRET}/score"}}, "A reward server."),
        ({"judge_off": "no key"}, "Correctness of the final answer."),
        ({"judge_is_stand_in": True}, "judged by a local server in place of Gemini, whose scores mean nothing."),
    ],
)
def test_the_reward_is_named_without_the_users_files(run, checkpoint, changes, said) -> None:
    config = json.loads((run.folder / "config.json").read_text())
    flags = config["flags"] | changes.pop("flags", {})
    (run.folder / "config.json").write_text(json.dumps(config | changes | {"flags": flags}))
    text = model_card.write_text(checkpoint, adapter_files.read(run.folder / "final"), False, "mit")
    assert said in text and SECRET not in text


def test_a_run_with_two_rewards_names_both_and_what_each_evaluation_measured(run, checkpoint) -> None:
    files = RunFiles(run.folder)
    files.note_resume(12, {"remote_rm_url": [f"/{SECRET}/user_reward.py", f"/{SECRET}/reward_func.py"]})
    files.note_resume(15, {"max_steps": [18, 20]})
    first, *later = files.evals.read_text().splitlines()
    files.evals.write_text("\n".join([first.replace("exact_match", "score"), *later]) + "\n")
    text = model_card.write_text(checkpoint, adapter_files.read(run.folder / "final"), False, "mit")
    for line in (
        "| step | result, 95% interval | problems |",
        "| 0 | score 0.400 [0.300, 0.500] | 18 |",
        "| 20 | exact match 0.600 [0.500, 0.700] | 18 |",
        "- from step 1: A custom Python reward function.",
        "- from step 13: 0.6 x correctness + 0.4 x quality, judged by gemini-a gemini-b.",
    ):
        assert line in text.splitlines(), line
    adapter = adapter_files.read(run.folder / "checkpoints" / "step_10" / "adapter")
    before = model_card.write_text(checkpoint, adapter, False, "mit")
    assert "A custom Python reward function." in before.splitlines()


def test_a_card_needs_a_run_and_is_refused_before_anything_is_written(
    checkpoint, trained_adapter, tmp_path, capsys
) -> None:
    words = ["--model", str(checkpoint), "--adapter", str(trained_adapter), "--out", str(tmp_path / "out")]
    assert export_model.main([*words, "--card"]) == 2
    assert "is not in a run's folder" in capsys.readouterr().err
    assert export_model.main([*words, "--unmerged", "--experts", "bf16"]) == 2
    assert not (tmp_path / "out").exists()
