"""The adapter of experts in PEFT's form: PEFT itself loads, computes, and saves it, and vLLM reads it."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import GptOssConfig, GptOssForCausalLM
from vllm.lora.lora_model import LoRAModel
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.models.gpt_oss import GptOssForCausalLM as VllmGptOss

from eval.engine import flatten
from grpo.checkpoint import adapter_files, digests, saving
from grpo.lora import expert_form
from grpo.lora.adapter import adapter_parameters, gather, unflatten
from grpo.model import expert_lora, experts
from grpo.model.architecture import Architecture
from grpo.model.model_files import Model

CONFIG = GptOssConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, num_local_experts=8, num_experts_per_tok=2, attn_implementation="eager",
)  # fmt: skip


@pytest.fixture
def stock_model():
    """transformers' model in float32. Since version 5 its experts say that their weights are `[E, in, out]`."""
    torch.manual_seed(0)
    model = GptOssForCausalLM(CONFIG)
    for layer in model.model.layers:
        layer.mlp.experts.is_transposed = True
        for parameter in layer.mlp.parameters():
            nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture(params=[["q_proj", "o_proj", "experts"], ["experts"]], ids=["both", "experts"])
def targets(request):
    return request.param


@pytest.fixture
def our_model(stock_model, targets):
    """A PeftModel with our experts, of the same weights, and a drawn adapter that bf16 can hold."""
    model = copy.deepcopy(stock_model)
    for layer in model.model.layers:
        mine = experts.Experts(CONFIG, packed=False)
        mine.load_state_dict(layer.mlp.experts.state_dict())
        layer.mlp.experts = mine
    expert_lora.attach(model, 2)
    config = LoraConfig(r=8, lora_alpha=12, target_modules=expert_lora.list_target_modules(targets))
    model = get_peft_model(model, config, autocast_adapter_dtype=False)
    for parameter in adapter_parameters(model)[1]:
        parameter.data = torch.randn_like(parameter).mul(0.2).bfloat16().float()
    return model


def compute_results(model):
    """Return the logits of a few tokens, and the gradients of the adapter as PEFT's files hold it."""
    logits = model(input_ids=torch.arange(2, 22).view(2, 10)).logits
    names, parameters = adapter_parameters(model)
    gradients = torch.autograd.grad(logits.square().sum(), parameters)
    return logits, {name: expert_form.to_file(name, values) for name, values in zip(names, gradients, strict=True)}


def test_peft_computes_the_same_from_our_file(our_model, stock_model, single_rank, tmp_path):
    saving.save_adapter(our_model, tmp_path / "ours")
    peft = PeftModel.from_pretrained(stock_model, tmp_path / "ours", is_trainable=True, autocast_adapter_dtype=False)
    trained = [name for name, parameter in our_model.named_parameters() if parameter.requires_grad]
    assert len(trained) == len(adapter_parameters(our_model)[0]) == len(adapter_parameters(peft)[0])
    (logits, gradients), (wanted, expected) = compute_results(our_model), compute_results(peft)
    assert (logits - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert gradients.keys() == expected.keys()
    for name, values in expected.items():
        assert (gradients[name] - values).norm() < 1e-4 * values.norm(), name


def test_vllm_reads_the_matrices_of_each_expert(our_model, single_rank, tmp_path):
    saving.save_adapter(our_model, tmp_path)
    config = PEFTHelper.from_local_dir(str(tmp_path), max_position_embeddings=None)
    modules = {"q_proj", "o_proj", "experts"}
    mapper = VllmGptOss.hf_to_vllm_mapper
    read = LoRAModel.from_local_checkpoint(str(tmp_path), modules, config, device="cpu", weights_mapper=mapper)
    manager = object.__new__(LoRAModelManager)
    manager.is_pooling_model, manager._is_3d_moe_model = False, True  # as for gpt-oss
    for number, layer in enumerate(our_model.base_model.model.model.layers):
        adapters = layer.mlp.experts.adapters
        count = CONFIG.num_local_experts
        room = SimpleNamespace(w13_lora_a_stacked=[torch.empty(1, count)], global_num_experts=count, ep_rank=0)
        name = f"model.layers.{number}.mlp.experts"
        manager._stack_moe_lora_weights(read, room, name)
        found = read.get_lora(name)
        for half, matrices in (("lora_A", found.lora_a), ("lora_B", found.lora_b)):
            ours = [getattr(adapters[part], half)["default"].weight for part in ("gate_up_proj", "down_proj")]
            assert all(torch.equal(*pair) for pair in zip(matrices, ours, strict=True))
        assert found.scaling == adapters["down_proj"].scaling["default"]


def test_we_read_what_peft_saves(our_model, stock_model, single_rank, tmp_path):
    saving.save_adapter(our_model, tmp_path / "ours")
    peft = PeftModel.from_pretrained(stock_model, tmp_path / "ours")
    peft.save_pretrained(tmp_path / "peft", save_embedding_layers=False)  # otherwise it asks the hub for the base
    mine, theirs = (load_file(tmp_path / name / adapter_files.WEIGHTS) for name in ("ours", "peft"))
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name].bfloat16()) for name in mine)
    of_ours, of_peft = (json.loads((tmp_path / name / adapter_files.CONFIG).read_text()) for name in ("ours", "peft"))
    for key in ("r", "lora_alpha", "target_modules", "target_parameters", "rank_pattern", "alpha_pattern"):
        sides = of_ours[key], of_peft[key]
        assert sides[0] == sides[1] or sorted(sides[0]) == sorted(sides[1])  # sets in any order
    before = [parameter.clone() for parameter in adapter_parameters(our_model)[1]]
    for parameter in adapter_parameters(our_model)[1]:
        nn.init.zeros_(parameter)
    saving.load_adapter(our_model, tmp_path / "peft")
    assert all(map(torch.equal, adapter_parameters(our_model)[1], before))


BASE = Architecture.from_config(CONFIG.to_dict() | {"model_type": "gpt_oss"})


def find_faults(folder):
    """Return what is wrong with an adapter of a model of CONFIG; its base has no other files."""
    adapter = adapter_files.read(folder)
    return adapter, [fault.what for fault in adapter_files.check_against(adapter, Model(folder, CONFIG.to_dict(), {}))]


def test_an_adapter_of_experts_fits_its_base(our_model, targets, single_rank, tmp_path):
    saving.save_adapter(our_model, tmp_path)
    adapter, found = find_faults(tmp_path)
    evaluated, synced = (unflatten(*pair) for pair in (flatten(adapter, BASE), gather(our_model)))
    assert evaluated.keys() == synced.keys()
    assert all(torch.equal(evaluated[name], tensor) for name, tensor in synced.items())
    assert found == [] and adapter.projections == targets
    assert adapter.find_expert_rank(BASE) == 2 and adapter.scale == 1.5


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"alpha_pattern": {}}, "experts.gate_up_proj by 6"),
        ({"rank_pattern": {"o_proj": 2}}, "rank_pattern {'o_proj': 2}"),
    ],
)
def test_a_config_that_readers_understand_differently_is_refused(our_model, single_rank, tmp_path, changes, what):
    saving.save_adapter(our_model, tmp_path)
    (tmp_path / digests.NAME).unlink()
    config = json.loads((tmp_path / adapter_files.CONFIG).read_text())
    (tmp_path / adapter_files.CONFIG).write_text(json.dumps(config | changes))
    assert any(what in fault for fault in find_faults(tmp_path)[1])


def test_a_file_of_peft_with_transformers_4_is_refused(stock_model, tmp_path):
    """Its down_proj would have the right shapes in gpt-oss, where both sides are 2880 wide."""
    for layer in stock_model.model.layers:
        layer.mlp.experts.is_transposed = False
    config = LoraConfig(
        r=2, lora_alpha=3, target_modules=["q_proj"], target_parameters=[f"mlp.{p}" for p in expert_form.PARAMETERS]
    )
    get_peft_model(stock_model, config).save_pretrained(tmp_path, save_embedding_layers=False)
    assert any("A and B" in fault for fault in find_faults(tmp_path)[1])
