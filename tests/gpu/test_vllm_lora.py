"""A check that needs a GPU: CUDA graphs of layers with an adapter follow it."""

import torch

from tests.grpo.lora.workers_attention import WorkersAttention, draw_adapter, draw_inputs, draw_weights


def test_a_captured_graph_follows_the_adapter(gpu):
    torch.manual_seed(0)
    with torch.device("cuda"), torch.inference_mode():
        weights, inputs = draw_weights(), draw_inputs(3)
        attention = WorkersAttention(weights)
        before = attention(*inputs)  # also the first use of cuBLAS, which must not be captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = attention(*inputs)
        attention.load({name: values.cpu() for name, values in draw_adapter(weights).items()})
        graph.replay()
        for result, now, old in zip(results, attention(*inputs), before, strict=True):
            torch.testing.assert_close(result, now)
            assert (result - old).abs().max() > 0.01
