"""The recorder on a scripted model runner; tests/stack/test_routing_replay.py runs it in vLLM."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from grpo.lora import router_capture
from grpo.lora.adapter import ALL, NAMED, RECORDS
from grpo.lora.router_capture import Recorder, choose

from .recorded_pass import RecordedPass

LAYERS, CHOSEN, BLOCK, BLOCKS = 3, 2, 4, 16


def test_a_kernel_that_chooses_by_itself_must_take_what_is_recorded():
    """Also where logits are equal."""
    logits = torch.randn(200, 16).bfloat16().mul(2).round()  # full of ties
    noted = torch.zeros(300, 4, dtype=torch.uint8)
    masked = choose(logits, noted)
    assert ((masked == logits) | (masked == -torch.inf)).all()
    assert torch.equal((masked > -torch.inf).nonzero()[:, 1].view(200, 4), noted[:200].long().sort().values - 1)
    chosen = noted[:200].long() - 1
    expected = torch.zeros(200, 16).double().scatter(1, chosen, logits.double().gather(1, chosen).softmax(-1))
    torch.testing.assert_close(masked.double().softmax(-1), expected, rtol=0, atol=1e-12)
    assert not noted[200:].any()


def test_a_recorded_pass_notes_the_choices_of_later_tokens():
    """As a CUDA graph must."""
    logits, noted = torch.randn(5, 16).bfloat16(), torch.zeros(8, 4, dtype=torch.uint8)
    with RecordedPass() as recorded:
        masked = choose(logits, noted)
    logits.copy_(torch.randn(5, 16))
    recorded.replay()
    expected = torch.zeros_like(noted)
    assert torch.equal(masked, choose(logits, expected)) and torch.equal(noted, expected)


class Runner:
    """The parts of vLLM's model runner that the recorder reads. Choices of a token are 10 * token + layer, modulo 256.

    Args:
        extra: of the requests, by name.
    """

    def __init__(self, **extra):
        buffers = [SimpleNamespace(mlp=SimpleNamespace(experts=SimpleNamespace(chosen=None))) for _ in range(LAYERS)]
        self._layers = buffers
        for layer in buffers:
            layer.mlp.experts.chosen = torch.zeros(64, CHOSEN, dtype=torch.uint8)
        self.model = SimpleNamespace(model=SimpleNamespace(layers=buffers))
        sizes = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}
        specs = [SlidingWindowSpec(**sizes, sliding_window=4), FullAttentionSpec(**sizes)]
        groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=groups, num_blocks=BLOCKS)
        self.requests = {
            name: SimpleNamespace(sampling_params=SimpleNamespace(extra_args=e)) for name, e in extra.items()
        }

    def step(self, recorder, **fed):
        """Run a pass: for each request, its first position, its tokens and its blocks."""
        tokens = [token for _, these, _ in fed.values() for token in these]
        for number, layer in enumerate(self._layers):
            layer.mlp.experts.chosen[: len(tokens)] = make_choices(tokens)[:, number]
        blocks = np.zeros((len(fed), BLOCKS), np.int32)
        slots = []
        for row, (start, these, mine) in enumerate(fed.values()):
            blocks[row, : len(mine)] = mine
            slots += [mine[at // BLOCK] * BLOCK + at % BLOCK for at in range(start, start + len(these))]
        table = SimpleNamespace(
            block_size=BLOCK,
            block_table=SimpleNamespace(np=blocks),
            slot_mapping=SimpleNamespace(gpu=torch.tensor(slots)),
        )
        self.input_batch = SimpleNamespace(
            req_ids=list(fed),
            num_computed_tokens_cpu=np.array([start for start, _, _ in fed.values()]),
            block_table=[None, table],
        )
        self.input_ids = SimpleNamespace(gpu=torch.tensor(tokens, dtype=torch.int32))
        recorder.note(self, {name: len(these) for name, (_, these, _) in fed.items()})


def make_choices(tokens):
    of_token = torch.tensor(tokens)[:, None, None] * 10 + torch.arange(LAYERS)[None, :, None]
    return (of_token % 256).to(torch.uint8).expand(-1, -1, CHOSEN)


def take_routing(recorder, rollout):
    calls = recorder.take(rollout)
    tokens = [np.frombuffer(tokens, np.int32).tolist() for tokens, _ in calls]
    for these, (_, bytes_) in zip(tokens, calls, strict=True):
        got = torch.frombuffer(bytearray(bytes_), dtype=torch.uint8).view(-1, LAYERS, CHOSEN)
        assert torch.equal(got, make_choices(these)), "a token has another token's choice"
    return tokens


def make_extra_args(rollout):
    return {"routing_of": rollout}


def test_prompts_in_chunks_and_sampled_tokens_of_several_requests():
    runner = Runner(a=make_extra_args("A"), b=make_extra_args("B"), c=None)
    recorder = Recorder(runner)
    runner.step(recorder, a=(0, [1, 2, 3], [5, 6]), c=(0, [9, 9], [7]))
    runner.step(recorder, c=(2, [9], [7]), a=(3, [4, 5], [5, 6]), b=(0, [6, 7], [8]))
    runner.step(recorder, a=(5, [8], [5, 6]), b=(2, [1], [8]))
    assert take_routing(recorder, "A") == [[1, 2, 3, 4, 5, 8]]
    assert take_routing(recorder, "B") == [[6, 7, 1]]
    assert take_routing(recorder, "A") == []


def test_a_prompt_in_the_prefix_cache_has_the_choices_that_made_the_cache():
    runner = Runner(a=None, b=make_extra_args("B"))
    recorder = Recorder(runner)
    runner.step(recorder, a=(0, [1, 2, 3, 4, 5], [5, 6]))
    runner.step(recorder, b=(4, [7, 8], [5, 9]))
    assert take_routing(recorder, "B") == [[1, 2, 3, 4, 7, 8]]


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_prompt_that_another_request_computes_in_the_same_pass(first):
    """vLLM's scheduler offers a block to the next request as soon as it is planned."""
    runner = Runner(a=make_extra_args("A"), b=make_extra_args("B"))
    recorder = Recorder(runner)
    fed = {"a": (0, [1, 2, 3, 4, 5], [5, 6]), "b": (4, [7, 8], [5, 9])}
    runner.step(recorder, **dict(sorted(fed.items(), reverse=first == "b")))
    assert take_routing(recorder, "A") == [[1, 2, 3, 4, 5]]
    assert take_routing(recorder, "B") == [[1, 2, 3, 4, 7, 8]]


def test_a_preempted_request_keeps_the_choices_that_it_sampled_from():
    runner = Runner(a=make_extra_args("A"))
    recorder = Recorder(runner)
    runner.step(recorder, a=(0, [1, 2, 3], [5]))
    runner.step(recorder, a=(0, [1, 2, 3, 4], [6, 7]))
    runner.step(recorder, a=(4, [5], [6, 7]))
    assert take_routing(recorder, "A") == [[1, 2, 3, 4, 5]]


def test_calls_of_a_rollout_come_in_order_and_can_be_forgotten():
    runner = Runner(a=make_extra_args("A"), b=make_extra_args("A"), c=make_extra_args("C"))
    recorder = Recorder(runner)
    runner.step(recorder, a=(0, [1, 2], [5]))
    runner.step(recorder, b=(0, [3], [6]))
    runner.step(recorder, a=(2, [4], [5]))
    assert take_routing(recorder, "A") == [[1, 2, 4], [3]]
    runner.step(recorder, a=(0, [1, 2, 3, 4], [5]))
    recorder.clear()  # as a sync does: passes that nobody asks for are not noted, so a slot may have had another token
    assert take_routing(recorder, "A") == []
    runner.step(recorder, c=(4, [7], [5, 9]))
    [(_, routing)] = recorder.take("C")
    assert not any(routing[: 4 * LAYERS * CHOSEN])


def make_engine_config(records=ALL, use_v2_model_runner=False):
    return SimpleNamespace(
        use_v2_model_runner=use_v2_model_runner,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8),
        additional_config={RECORDS: records},
    )


def make_experts(backend=None):
    method = SimpleNamespace() if backend is None else SimpleNamespace(mxfp4_backend=SimpleNamespace(name=backend))
    layer = torch.nn.Module()
    layer.quant_method, layer.moe_config = method, SimpleNamespace(experts_per_token=2)
    return layer


def test_kernels_and_models_that_are_not_known_are_refused_by_name():
    with pytest.raises(Exception, match="SM100_FI_MXFP4_BF16"):
        router_capture.prepare(make_experts("SM100_FI_MXFP4_BF16"), make_engine_config())
    with pytest.raises(Exception, match=r"--routing_replay.*VLLM_USE_V2_MODEL_RUNNER"):
        router_capture.prepare(make_experts(), make_engine_config(use_v2_model_runner=True))
    layer = make_experts()
    router_capture.prepare(layer, make_engine_config(NAMED, use_v2_model_runner=True))
    assert not hasattr(layer, "chosen"), "the parity gate does without"
    for known in (None, *router_capture.KNOWN_MXFP4):
        layer = make_experts(known)
        router_capture.prepare(layer, make_engine_config())
        assert layer.chosen.shape == (8, 2) and layer.is_bound
        layer = make_experts(known)
        router_capture.prepare(layer, make_engine_config(NAMED))
        assert layer.chosen.shape == (8, 2) and not layer.is_bound
