"""Bugs of stock OpenRLHF that our patches fix: every check here fails on the pristine files and passes on ours."""

from types import SimpleNamespace

from grpo.hooks.flag_aliases import Arguments
from scripts.checkpoint_writer import dequantize_checkpoint
from tests.grpo.conftest import assert_fails_on_stock


def test_flash_attn_is_not_needed(load):
    assert_fails_on_stock(load, lambda: load("models.ring_attn_utils"), ImportError)


def test_router_logits_are_off_without_a_balancing_loss(load, checkpoint, tmp_path):
    # not quantized: at an MXFP4 config, stock stops before, since it passes quantization_config=None
    dequantize_checkpoint(checkpoint, tmp_path / "bf16")

    def check():
        actor = load("models.actor").Actor(str(tmp_path / "bf16"), attn_implementation="eager")
        assert not actor.model.config.output_router_logits

    assert_fails_on_stock(load, check)


def test_saving_an_adapter_does_not_gather_the_model(load, peft_model, single_rank, tmp_path):
    def gather_everything():
        raise AssertionError("the whole model is gathered")

    args = Arguments(param_dtype="bf16", zero_stage=3, ds_tensor_parallel_size=1, use_dynamic_batch=False)
    strategy = load("utils.deepspeed.deepspeed").DeepspeedStrategy(zero_stage=3, args=args)
    engine = SimpleNamespace(module=peft_model, _consolidated_16bit_state_dict=gather_everything)

    def check():
        strategy.save_model(engine, tokenizer=None, output_dir=str(tmp_path / "adapter"))
        assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()

    assert_fails_on_stock(load, check)
