"""Engine arguments, as vLLM itself resolves them."""

import pytest
from vllm import AsyncEngineArgs
from vllm.config.compilation import CUDAGraphMode

from benchmarks.random_model import shrink, write_config
from grpo.model.sizes import DECODED_SEQUENCES
from grpo.rollout import engine


@pytest.mark.parametrize(
    ("sequences", "largest", "graphs"), [(DECODED_SEQUENCES, 128, 19), (1, 16, 5), (100, 112, 17), (500, 512, 51)]
)
def test_graphs_are_captured_up_to_the_sequences_of_an_engine(tmp_path, sequences, largest, graphs) -> None:
    write_config(tmp_path, shrink(layers=2))
    given = engine.arguments(sequences=sequences)
    config = AsyncEngineArgs(model=str(tmp_path), **given).create_engine_config()
    assert config.scheduler_config.max_num_seqs == sequences
    compilation = config.compilation_config
    assert compilation.max_cudagraph_capture_size == largest
    # A CPU has no graphs; this is what vLLM does on a GPU.
    compilation.cudagraph_mode, compilation.cudagraph_capture_sizes = CUDAGraphMode.FULL_AND_PIECEWISE, None
    config._set_cudagraph_sizes()
    sizes = compilation.cudagraph_capture_sizes
    assert (sizes[-1], len(sizes)) == (largest, graphs)


def test_an_evaluation_without_a_batch_leaves_it_to_vllm() -> None:
    assert not {"max_num_seqs", "compilation_config"} & engine.arguments(sequences=None).keys()
