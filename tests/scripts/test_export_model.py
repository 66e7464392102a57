"""Merged checkpoints, against PEFT's own merge and as transformers loads them; and everything that is refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssForCausalLM, Mxfp4Config
from transformers.utils import hub

from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import WEIGHTS
from grpo.lora import expert_form
from grpo.model import loading, model_files, mxfp4
from grpo.model.architecture import ATTENTION_PROJECTIONS, check
from grpo.model.model_files import CheckpointError
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError
from scripts import checkpoint_writer, export_model
from scripts.checkpoint_writer import dequantize_checkpoint
from tests.docs.pages import get_page
from tests.scripts.conftest import OF_EXPERTS, load_unpacked, save_adapter

TOKENS = torch.arange(2, 90).reshape(2, 44)


def merge_with_peft(base: Path, adapter: Path) -> GptOssForCausalLM:
    """Merge in float32 with PEFT, then round to bf16."""
    model = PeftModel.from_pretrained(load_unpacked(base).float(), adapter, autocast_adapter_dtype=True)
    merged = model.merge_and_unload().bfloat16()
    loading.restore_rope(merged)
    return merged


@pytest.fixture(scope="module")
def reference(checkpoint: Path, trained_adapter: Path) -> GptOssForCausalLM:
    return merge_with_peft(checkpoint, trained_adapter)


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("experts", [None, "mxfp4", "bf16"])
def test_export_is_what_peft_merges(checkpoint, trained_adapter, reference, tmp_path, experts) -> None:
    out = tmp_path / "out"
    merge = export_model.export_model(checkpoint, trained_adapter, out, experts)
    assert merge.merged == 2 * len(ATTENTION_PROJECTIONS)
    assert len(list(out.glob("*.safetensors"))) > 3 and check(model_files.read(out)) == []

    quantization = {"quantization_config": Mxfp4Config(dequantize=True)} if experts != "bf16" else {}
    loaded, report = AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.bfloat16, attn_implementation="eager", output_loading_info=True, **quantization
    )
    assert not any(report.values()), report
    expected = dict(reference.named_parameters())
    assert expected.keys() == dict(loaded.named_parameters()).keys()
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, expected[name]), name
    with torch.no_grad():
        logits = loaded(TOKENS).logits
        assert torch.equal(logits, reference(TOKENS).logits)
        assert not torch.allclose(logits, loading.load_gpt_oss(checkpoint)(TOKENS).logits, atol=1e-3)


def test_mxfp4_experts_and_all_but_the_attention_keep_every_byte(base, trained_adapter, tmp_path) -> None:
    (base / "tokenizer.json").write_text("{}")
    (tmp_path / "out").mkdir()  # an empty one is fine
    export_model.export_model(base, trained_adapter, tmp_path / "out")
    before, after = read_tensors(base), read_tensors(tmp_path / "out")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys()
    assert changed == {f"{module}.weight" for module in adapter_files.list_modules(2, list(ATTENTION_PROJECTIONS))}
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert json.loads((tmp_path / "out" / name).read_text()) == json.loads((base / name).read_text())


def test_a_bf16_base_gives_what_the_mxfp4_base_gives(checkpoint, trained_adapter, tmp_path) -> None:
    assert export_model.main(["--model", str(checkpoint), "--experts", "bf16", "--out", str(tmp_path / "bf16")]) == 0
    export_model.export_model(tmp_path / "bf16", trained_adapter, tmp_path / "from_bf16")
    export_model.export_model(checkpoint, trained_adapter, tmp_path / "from_mxfp4", "bf16")
    ours, theirs = read_tensors(tmp_path / "from_bf16"), read_tensors(tmp_path / "from_mxfp4")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    config = json.loads((tmp_path / "from_mxfp4" / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    with pytest.raises(UserError, match="MXFP4"):
        export_model.export_model(tmp_path / "bf16", trained_adapter, tmp_path / "no", "mxfp4")


@pytest.mark.parametrize("settings", [{"use_rslora": True}, {"target_modules": ["q_proj", "v_proj"], "lora_alpha": 3}])
def test_other_scales_and_targets(checkpoint, tmp_path, settings) -> None:
    adapter = save_adapter(checkpoint, tmp_path / "adapter", **settings)
    export_model.export_model(checkpoint, adapter, tmp_path / "out")
    merged = read_tensors(tmp_path / "out")
    for name, parameter in merge_with_peft(checkpoint, adapter).named_parameters():
        assert ".experts." in name or torch.equal(parameter, merged[name]), name


def test_experts_are_merged_into_bf16(checkpoint, tmp_path) -> None:
    adapter = save_adapter(checkpoint, tmp_path / "adapter", target_modules=["q_proj"], **OF_EXPERTS)
    with pytest.raises(UserError, match="changes experts, and MXFP4 would lose most of it: use --experts bf16"):
        export_model.export_model(checkpoint, adapter, tmp_path / "out")
    merge = export_model.export_model(checkpoint, adapter, tmp_path / "out", "bf16")
    assert merge.merged == 2 * (1 + 2) and 0 < merge.bf16.lost < 0.2 and not merge.mxfp4.update
    merged = read_tensors(tmp_path / "out")
    for name, parameter in merge_with_peft(checkpoint, adapter).named_parameters():
        # Sums of float32 in another order may round the other way.
        assert (parameter == merged[name]).float().mean() > 0.99 and torch.allclose(parameter, merged[name], rtol=2**-7)


def test_experts_are_merged_into_mxfp4_if_asked(checkpoint, tmp_path, capsys) -> None:
    adapter = save_adapter(checkpoint, tmp_path / "adapter", target_modules=["q_proj"], **OF_EXPERTS)
    out = tmp_path / "out"
    words = ["--model", str(checkpoint), "--adapter", str(adapter), "--out", str(out), "--experts", "mxfp4"]
    assert export_model.main(words) == 0
    base, merged = (dict(load_unpacked(folder).named_parameters()) for folder in (checkpoint, out))
    exact = dict(merge_with_peft(checkpoint, adapter).named_parameters())
    error = update = 0.0
    for name, parameter in exact.items():
        if name.endswith(expert_form.PARAMETERS):
            assert torch.equal(merged[name], mxfp4.dequantize(*mxfp4.quantize(merged[name].detach())))
            error += (merged[name].float() - parameter.float()).square().sum().item()
            update += (parameter.float() - base[name].float()).square().sum().item()
        elif "q_proj.weight" not in name:
            assert torch.equal(base[name], merged[name])
    said = capsys.readouterr().out
    [told] = re.findall(r"rounding to MXFP4 changes the update by ([\d.]+)% of its norm", said)
    assert float(told) == pytest.approx(100 * (error / update) ** 0.5, rel=0.05) and "rounding to bf16" in said


def write_snapshot(folder: Path, name: str, cache: Path) -> Path:
    """Copy a folder to where the hub's cache has the model of this name."""
    snapshot = cache / f"models--{name.replace('/', '--')}" / "snapshots" / "0123"
    shutil.copytree(folder, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0123")
    return snapshot


def test_peft_loads_both_by_hub_id_as_the_page_says(checkpoint, adapter, tmp_path, monkeypatch) -> None:
    """The page's own lines; a hub's cache stands in for the hub."""
    base = write_snapshot(checkpoint, "openai/gpt-oss-120b", tmp_path / "hub")
    values = load_file(adapter / WEIGHTS)
    save_file({name.replace(".weight", ".default.weight"): value for name, value in values.items()}, adapter / WEIGHTS)
    words = ["--model", str(base), "--adapter", str(adapter), "--out", str(tmp_path / "upload"), "--unmerged"]
    assert export_model.main(words) == 0
    assert sorted(file.name for file in (tmp_path / "upload").iterdir()) == [adapter_files.CONFIG, WEIGHTS]
    assert str(tmp_path) not in (tmp_path / "upload" / adapter_files.CONFIG).read_text()

    write_snapshot(tmp_path / "upload", "OWNER/NAME", tmp_path / "hub")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "TRANSFORMERS_CACHE", str(tmp_path / "hub"), raising=False)  # of transformers 4
    [lines] = [block for language, block in get_page("docs/evaluation.md").blocks if language == "python"]
    exec(lines, names := {})
    expected = PeftModel.from_pretrained(loading.load_gpt_oss(checkpoint, "eager", packed=False), adapter)
    parameters, loaded = (dict(model.named_parameters()) for model in (expected, names["model"]))
    assert sum(name.endswith("default.weight") and bool(value.any()) for name, value in loaded.items()) == len(values)
    assert all(torch.equal(parameters[name].bfloat16(), value.bfloat16()) for name, value in loaded.items())


A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path, Path], None]:
    def damage(base: Path, adapter: Path) -> None:
        values = load_file(adapter / WEIGHTS)
        change(values)
        save_file(values, adapter / WEIGHTS)

    return damage


def change_settings(**changes: object) -> Callable[[Path, Path], None]:
    def damage(base: Path, adapter: Path) -> None:
        file = adapter / adapter_files.CONFIG
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


def widen(values: dict[str, torch.Tensor]) -> None:
    values[A0] = torch.zeros(4, 256, dtype=torch.bfloat16)


def cut_base(base: Path, adapter: Path) -> None:
    shard = next(base.glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_settings(r=8), "rank"),
        (change_weights(widen), A0),
        (change_weights(lambda values: values.pop(A0)), A0),
        (
            change_weights(lambda values: [values.pop(n) for n in list(values) if "layers.1." in n]),
            r"layers\.1\.",
        ),
        (change_weights(lambda values: values[A0].fill_(float("nan"))), A0),
        (cut_base, "model-0"),
        (lambda base, adapter: (base / "config.json").unlink(), "config.json"),
        (lambda base, adapter: (adapter / WEIGHTS).unlink(), WEIGHTS),
        (lambda base, adapter: shutil.copytree(adapter, adapter / "adapter"), "adapter"),
        (lambda base, adapter: (adapter / "checkpoints").mkdir(), "checkpoints"),
    ],
)
def test_mismatched_base_and_adapter_are_rejected(base, adapter, tmp_path, damage, message) -> None:
    damage(base, adapter)
    with pytest.raises(UserError, match=message):
        export_model.export_model(base, adapter, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_an_adapter_of_another_base_of_the_same_shape_is_refused(base, adapter, tmp_path) -> None:
    own = adapter_files.fingerprint(model_files.read(base))
    save_file(load_file(adapter / WEIGHTS), adapter / WEIGHTS, metadata={adapter_files.BASE_KEY: own})
    dequantize_checkpoint(base, tmp_path / "copy")
    for same in (base, tmp_path / "copy"):
        assert adapter_files.check_against(adapter_files.read(adapter), model_files.read(same)) == []
    export_model.export_model(base, adapter, tmp_path / "merged")
    with pytest.raises(UserError, match="merged"):
        export_model.export_model(tmp_path / "merged", adapter, tmp_path / "twice")


def test_existing_or_too_small_output_location_is_rejected(base, adapter, tmp_path, monkeypatch, capsys) -> None:
    words = ["--model", str(base), "--adapter", str(adapter), "--out"]
    assert export_model.main([*words, str(base)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert export_model.main([*words, str(base / "config.json")]) == 2
    (tmp_path / ".out.partial").mkdir()
    assert export_model.main([*words, str(tmp_path / "out")]) == 2
    assert ".out.partial exists: remove it" in capsys.readouterr().err
    (tmp_path / ".out.partial").rmdir()
    monkeypatch.setattr(checkpoint_writer, "disk_free", lambda path: 1_000_000)
    assert export_model.main([*words, str(tmp_path / "out")]) == 2
    assert "1.0 MB free" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


@pytest.mark.parametrize("way", ["error", "killed"])
def test_an_export_that_is_interrupted_leaves_nothing_that_looks_whole(base, adapter, tmp_path, way) -> None:
    """The second file fails."""
    end = {"error": "raise OSError('no space')", "killed": "os.kill(os.getpid(), signal.SIGKILL)"}[way]
    code = f"""
import os, signal, sys
from pathlib import Path
from scripts import checkpoint_writer, export_model
save = checkpoint_writer.save_file
def fail(tensors, file, **more):
    if len(list(file.parent.glob("*.safetensors"))): {end}
    save(tensors, file, **more)
checkpoint_writer.save_file = fail
sys.exit(export_model.main(sys.argv[1:]))
"""
    words = ["--model", base, "--adapter", adapter, "--out", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=CHECKOUT, capture_output=True, text=True)
    left = {path.name for path in tmp_path.iterdir()} - {"adapter", "base"}
    assert (done.returncode, left) == ((2, set()) if way == "error" else (-signal.SIGKILL, {".out.partial"}))
    if left:
        with pytest.raises(CheckpointError):
            model_files.read(tmp_path / ".out.partial")
