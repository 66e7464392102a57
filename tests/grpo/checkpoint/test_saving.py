import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from grpo.checkpoint import adapter_files, digests
from grpo.checkpoint.saving import load_adapter, save_adapter
from grpo.lora.adapter import adapter_parameters
from grpo.model import loading, model_files
from grpo.model.model_files import CheckpointError
from grpo.run.run_files import saved_steps


def test_peft_loads_what_was_saved_from_partitions(either_checkpoint, run_ranks, tmp_path):
    run_ranks(2, "save", either_checkpoint, tmp_path)
    directory = tmp_path / "checkpoints" / "step_3" / "adapter"
    whole = torch.load(tmp_path / "whole.pt")
    saved = load_file(directory / "adapter_model.safetensors")
    assert {name.replace(".default", "") for name in whole} == saved.keys()
    model = PeftModel.from_pretrained(loading.load_gpt_oss(either_checkpoint), directory, autocast_adapter_dtype=False)
    loaded = dict(model.named_parameters())
    for name, value in whole.items():
        assert torch.equal(loaded[name], value.to(torch.bfloat16)), name

    model = model_files.read(either_checkpoint)
    assert adapter_files.read(directory).base == adapter_files.fingerprint(model) is not None
    assert adapter_files.check_against(adapter_files.read(directory), model) == []

    # as is the final one, which this call writes
    assert digests.is_sealed(directory) and digests.damage(directory) == {}

    # a step 4 with NaN was refused
    assert saved_steps(tmp_path / "checkpoints") == [1, 2, 3]
    assert not list((tmp_path / "checkpoints" / "step_3").glob(".*")), "temporary files are left"


@pytest.mark.parametrize(
    ("folder", "named"),
    [
        ("/home/me/hub/models--openai--gpt-oss-120b/snapshots/b5c939de", "openai/gpt-oss-120b"),
        ("/home/me/my-model", "/home/me/my-model"),
    ],
)
def test_an_adapter_names_its_base_by_the_hubs_id(peft_model, single_rank, tmp_path, folder, named):
    config = peft_model.peft_config["default"]
    config.base_model_name_or_path = folder
    save_adapter(peft_model, tmp_path / "adapter")
    written = json.loads((tmp_path / "adapter" / adapter_files.CONFIG).read_text())
    assert (written["base_model_name_or_path"], written["inference_mode"]) == (named, True)
    assert (config.base_model_name_or_path, config.inference_mode) == (folder, False)


def test_equal_adapters_have_equal_files(peft_model, single_rank, tmp_path, monkeypatch):
    monkeypatch.setattr(adapter_files, "compute_fingerprint", lambda _: "0" * 64)
    for number in range(8):  # the order of metadata is drawn at each write
        save_adapter(peft_model, tmp_path / str(number))

    assert len({(tmp_path / str(number) / digests.NAME).read_text() for number in range(8)}) == 1
    assert adapter_files.read(tmp_path / "0").base == "0" * 64
    targets = adapter_files.read(tmp_path / "0").config["target_modules"]
    assert targets == sorted(targets)


def test_an_adapter_of_another_library_is_loaded_and_one_of_other_shapes_refused(peft_model, single_rank, tmp_path):
    save_adapter(peft_model, tmp_path / "adapter")
    (tmp_path / "adapter" / digests.NAME).unlink()
    file = tmp_path / "adapter" / adapter_files.WEIGHTS
    values = {name: torch.randn(value.shape) for name, value in load_file(file).items()}
    save_file({name.replace(".weight", ".default.weight"): value for name, value in values.items()}, file)
    load_adapter(peft_model, tmp_path / "adapter")
    for name, parameter in zip(*adapter_parameters(peft_model), strict=True):
        assert torch.equal(parameter, values[name].bfloat16()) and parameter.requires_grad, name

    save_file({name: value[:1] for name, value in values.items()}, file)
    with pytest.raises(CheckpointError, match="adapter"):
        load_adapter(peft_model, tmp_path / "adapter")
