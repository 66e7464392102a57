"""The experts' adapter in an engine against the trainer's experts; tests/stack/test_agreement.py runs it in engines."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization import mxfp4 as quantization

from benchmarks.kernels import relative
from grpo.lora import adapter, expert_form, vllm_lora
from grpo.model import expert_lora, mxfp4
from grpo.model.experts import Experts
from grpo.stack.problem import UserError

from .recorded_pass import RecordedPass

INTERMEDIATE = 96  # of all workers
ADDITIONAL = {"lora_rank": 8, "lora_scale": 1.7, "expert_rank": 3}
CONFIG = GptOssConfig(num_local_experts=6, num_experts_per_tok=2, hidden_size=32, intermediate_size=INTERMEDIATE)
RANK, SCALE = ADDITIONAL["expert_rank"], ADDITIONAL["lora_scale"]
TOKENS = 11
# The names of vLLM 0.29, and of 0.15.
BACKENDS = getattr(quantization, "Mxfp4MoeBackend", None) or quantization.Mxfp4Backend
METHOD = getattr(quantization, "GptOssMxfp4MoEMethod", None) or quantization.Mxfp4MoEMethod


def configure() -> SimpleNamespace:
    """Return an engine's configuration, as far as it is asked."""
    model = SimpleNamespace(hf_config=SimpleNamespace(intermediate_size=INTERMEDIATE))
    return SimpleNamespace(additional_config=dict(ADDITIONAL), model_config=model)


class Unquantized(UnquantizedFusedMoEMethod):
    """vLLM's method, as it is on CPUs."""

    is_monolithic = True

    def __init__(self) -> None:
        """Choose no kernels."""


class WorkersExperts(torch.nn.Module):
    """The experts in worker `rank` of an engine; `trained` has the frozen weights, as the trainer holds them."""

    def __init__(self, trained: Experts, top_k: int, rank: int = 0, workers: int = 1, method=None) -> None:
        super().__init__()
        _, self.hidden_size, both = trained.shapes["gate_up_proj"]
        assert both == 2 * INTERMEDIATE
        self.top_k, self.moe_config = top_k, SimpleNamespace(tp_rank=rank, tp_size=workers)
        self.w13_weight = trained.gate_up_proj.transpose(1, 2).chunk(workers, 1)[rank].contiguous()
        self.w13_bias = trained.gate_up_proj_bias.chunk(workers, 1)[rank]
        self.w2_weight = trained.down_proj.transpose(1, 2).chunk(workers, 2)[rank].contiguous()
        self.w2_bias = trained.down_proj_bias * (rank == 0)
        self.quant_method = method or Unquantized()
        vllm_lora.attach_to_experts(self, configure())

    def forward(self, x: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
        return self.quant_method.apply_monolithic(layer=self, x=x, router_logits=router_logits)


class Layer:
    """A layer of the trainer with random weights and a random adapter."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.router = GptOssTopKRouter(CONFIG).bfloat16()
        self.experts = Experts(CONFIG, packed=False).bfloat16()
        for name, shape in self.experts.shapes.items():
            weight = torch.randn(shape).bfloat16() * 0.2
            getattr(self.experts, name).data = mxfp4.dequantize(*mxfp4.quantize(weight))
            lora = expert_lora.ExpertLora(shape, RANK, weight)
            lora.update_layer("default", 10, 10 * SCALE, LoraConfig())
            self.experts.adapters[name] = lora
        for parameter in (*self.router.parameters(), self.experts.gate_up_proj_bias, self.experts.down_proj_bias):
            torch.nn.init.normal_(parameter, std=0.2)
        self.draw_adapter()

    def draw_adapter(self) -> None:
        for parameter in self.experts.adapters.parameters():
            torch.nn.init.normal_(parameter, std=0.3)

    def list_sent(self) -> dict[str, torch.Tensor]:
        """Return the adapter's tensors by their names in a layer of an engine."""
        names = expert_form.MODULES
        return {
            f"{names[projection]}.lora_{half}": getattr(lora, f"lora_{half}")["default"].weight.detach()
            for projection, lora in self.experts.adapters.items()
            for half in "AB"
        }

    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        *_, weights, choices = self.router(x)
        return self.experts(x[None], router_indices=choices, routing_weights=weights)[0]

    def compute_logits(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.router.weight, self.router.bias).detach()


@pytest.fixture
def layer() -> Layer:
    return Layer()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(TOKENS, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()


def load(experts: WorkersExperts, layer: Layer) -> vllm_lora.Applied:
    applied = vllm_lora.Applied()
    vllm_lora.fill_experts(experts, {name: pair for name, pair in number_tensors(layer)}, applied)
    return applied


def number_tensors(layer: Layer):
    return ((name, (number, tensor)) for number, (name, tensor) in enumerate(layer.list_sent().items()))


class Triton(METHOD):
    """vLLM's method with its Triton kernels, as far as it is asked; products come from :func:`simulate_kernel`."""

    def __init__(self, backend=BACKENDS.TRITON) -> None:
        self.mxfp4_backend = backend
        self.moe_kernel, self.experts_cls = None, SimpleNamespace(is_monolithic=lambda: True)
        self.w13_precision_config = self.w2_precision_config = "MXFP4"


class TritonInParts(Triton):
    """vLLM's method with Triton kernels that do not choose the experts."""

    is_monolithic = False


def simulate_kernel(x, weight, bias, routing, precision_config):
    """Stand in for ``matmul_ogs``: the rows of each expert by its weight, ``[E, in, out]``, and its bias in float32."""
    assert precision_config == "MXFP4" and routing.expt_hist.dtype == torch.int32 and bias.dtype == torch.float32
    assert routing.expt_data == (routing.expt_hist.tolist(), len(x)) and routing.n_expts_tot == len(weight)
    parts = x.split(routing.expt_hist.tolist())
    products = [part.float() @ weight[e].float() + bias[e] for e, part in enumerate(parts)]
    return torch.cat(products).to(x.dtype)


@pytest.fixture
def triton(monkeypatch):
    package, products, routing = (ModuleType(f"triton_kernels{name}") for name in ("", ".matmul_ogs", ".routing"))
    products.matmul_ogs = simulate_kernel
    fields = ("gate_scal", "expt_hist", "n_expts_tot", "n_expts_act", "expt_data")
    products.RoutingData = lambda *values: SimpleNamespace(**dict(zip(fields, values, strict=True)))
    routing.compute_expt_data = lambda counts, experts, rows: (counts.tolist(), rows)
    for module in (package, products, routing):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def make_mxfp4_worker(trained: Experts, rank: int, workers: int) -> WorkersExperts:
    """Return a worker whose weights are cut between groups of 32 and padded to 64, as vLLM does it."""
    worker = WorkersExperts(trained, CONFIG.num_experts_per_tok, 0, 1)
    share = -(-3 // workers) * 32
    start, stop, padded = rank * share, min((rank + 1) * share, 96), -(-(96 // workers) // 64) * 64
    missing = padded - (stop - start)

    def pad(tensor: torch.Tensor, columns: int) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, columns))

    worker.moe_config = SimpleNamespace(tp_rank=rank, tp_size=workers)
    worker.w13_weight = pad(worker.w13_weight[:, 2 * start : 2 * stop].transpose(1, 2), 2 * missing)
    worker.w13_bias = pad(worker.w13_bias[:, 2 * start : 2 * stop], 2 * missing)
    worker.w2_weight = pad(worker.w2_weight[..., start:stop], missing).transpose(1, 2)
    worker.w2_bias = worker.w2_bias * (rank == 0)
    object.__setattr__(worker, "quant_method", Triton())
    vllm_lora.attach_to_experts(worker, configure())
    worker.w13_bias, worker.w2_bias = worker.w13_bias.float(), worker.w2_bias.float()  # as after loading
    return worker


def make_workers(trained: Experts, workers: int, packed: bool) -> list[WorkersExperts]:
    if packed:
        return [make_mxfp4_worker(trained, rank, workers) for rank in range(workers)]
    return [WorkersExperts(trained, CONFIG.num_experts_per_tok, rank, workers) for rank in range(workers)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("packed", [False, True], ids=["bf16", "mxfp4"])
@pytest.mark.usefixtures("triton")
def test_workers_compute_what_the_trainer_does_and_confirm_the_adapter(layer, x, workers, packed):
    engines = make_workers(layer.experts, workers, packed)
    with torch.inference_mode():
        base = sum(each(x, layer.compute_logits(x)).double() for each in engines)
        results = [load(each, layer) for each in engines]
        got = sum(each(x, layer.compute_logits(x)).double() for each in engines)
    expected = layer(x)
    assert relative(base, expected) > 0.3, "the adapter is too small to be tested"
    for lora in layer.experts.adapters.values():
        lora.enable_adapters(False)
    for values, wanted in ((got, expected), (base, layer(x))):
        # Workers with packed weights add the bias before they round; two workers round their halves.
        assert relative(values, wanted) < 0.008 if packed or workers > 1 else torch.equal(values, wanted.double())

    sent = layer.list_sent()
    names = [f"base_model.model.model.layers.0.mlp.{name}.weight" for name in sent]
    specs = adapter.layout(names, [tensor.shape for tensor in sent.values()])
    expected = adapter.Checksums.of(torch.cat([tensor.flatten() for tensor in sent.values()]), specs)
    sums = [int(adapter.checksum(applied.sums, tuple(applied.rows))) for applied in results]
    assert sum(sums) % 2**64 == expected.checksum(workers)
    assert {applied.tensors for applied in results} == {4}


def test_a_recorded_pass_follows_the_adapter(layer, x):
    [engine] = make_workers(layer.experts, 1, packed=False)
    logits = layer.compute_logits(x)
    with torch.no_grad(), RecordedPass() as recorded:
        result = engine(x, logits)
    for _ in range(2):
        before = result.clone()
        layer.draw_adapter()
        load(engine, layer)
        recorded.replay()
        assert torch.equal(result, engine(x, logits)) and not torch.equal(result, before)


@pytest.mark.parametrize(
    ("method", "what"),
    [
        *((Triton(kind), f"the MXFP4 kernels {kind.name}") for kind in BACKENDS if kind is not BACKENDS.TRITON),
        (TritonInParts(), "the MXFP4 kernels TRITON in vLLM's modular form"),
        (SimpleNamespace(), "the kernels of SimpleNamespace"),
    ],
)
def test_a_build_that_cannot_take_the_adapter_is_refused_by_name(method, what):
    with pytest.raises(UserError, match=what):
        vllm_lora.attach_to_experts(SimpleNamespace(quant_method=method), configure())
