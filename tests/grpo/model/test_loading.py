import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, Mxfp4Config

from grpo.model import loading, mxfp4


@pytest.fixture(scope="session")
def reference(either_checkpoint):
    """The checkpoint as dequantized by transformers."""
    return AutoModelForCausalLM.from_pretrained(
        either_checkpoint, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16
    )


def is_bit_equal(parameters, reference, packed):
    """Compare with transformers' parameters, after packed ones have become bf16."""
    unpacked = dict(parameters)
    for name in [name for name in parameters if name.endswith("_blocks")]:
        base = name.removesuffix("_blocks")
        unpacked[base] = mxfp4.dequantize(unpacked.pop(name).data, unpacked.pop(f"{base}_scales").data)
    assert (unpacked.keys() != parameters.keys()) is packed
    theirs = {name: parameter.to(torch.bfloat16) for name, parameter in reference.named_parameters()}
    return unpacked.keys() == theirs.keys() and all(torch.equal(unpacked[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("packed", [True, False])
def test_whole_model_is_bit_equal_to_transformers(either_checkpoint, reference, packed):
    ours = dict(loading.load_gpt_oss(either_checkpoint, packed=packed).named_parameters())
    assert is_bit_equal(ours, reference, packed)


def test_partitions_are_bit_equal_to_transformers(either_checkpoint, checkpoint, reference, run_ranks, tmp_path):
    is_large = either_checkpoint == checkpoint
    world, offload, kind = (2, "offload", "packed") if is_large else (3, "no-offload", "bf16")
    run_ranks(world, "load", either_checkpoint, tmp_path / "gathered.pt", offload, kind)
    assert is_bit_equal(torch.load(tmp_path / "gathered.pt"), reference, kind == "packed")


@pytest.mark.parametrize("packed", [True, False])
def test_logits_equal_transformers(either_checkpoint, reference, packed):
    tokens = torch.randint(0, 97, (2, 50), generator=torch.Generator().manual_seed(0))
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        ours = loading.load_gpt_oss(either_checkpoint, "eager", packed=packed)(tokens).logits
        assert torch.equal(ours, reference(tokens).logits)


@pytest.mark.parametrize("packed", [True, False])
def test_logits_are_those_of_training_in_eval_mode_too(either_checkpoint, packed):
    """Old log-probs come from the one, the loss from the other."""
    tokens = torch.randint(0, 97, (2, 50), generator=torch.Generator().manual_seed(0))
    model = loading.load_gpt_oss(either_checkpoint, packed=packed)
    trained = model.train()(tokens).logits
    with torch.no_grad():
        assert torch.equal(model.eval()(tokens).logits, trained)


def cut_a_shard(folder):
    shard = next(folder.glob("*-00001-of-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])


def rewrite_config(**changes):
    def rewrite(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return rewrite


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (cut_a_shard, "model-00001-of-"), (rewrite_config(vocab_size=128), "config"),
        (rewrite_config(model_type="qwen2"), "qwen2"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_damaged_or_of_another_model_is_refused(checkpoint, tmp_path, damage, named):
    folder = shutil.copytree(checkpoint, tmp_path / "damaged")
    damage(folder)
    with pytest.raises(loading.CheckpointError, match=named):
        loading.load_gpt_oss(folder)
