"""The released models, against what their publishers and other libraries say."""

import math

import pytest
from transformers import GptOssConfig

from grpo.model.architecture import Architecture
from grpo.model.released import CONTEXT, RELEASED

# `total_size` of each model.safetensors.index.json, and all parameters as OpenAI's model card counts them (Table 1).
PUBLISHED = {
    "openai/gpt-oss-120b": (65_248_815_744, 116.83e9),
    "openai/gpt-oss-20b": (13_761_264_768, 20.91e9),
}


@pytest.mark.parametrize("name", RELEASED)
def test_sizes_are_the_published_ones(name):
    size, parameters = PUBLISHED[name]
    assert sum(RELEASED[name].actor_bytes(packed=True).values()) == size
    counted = sum(math.prod(shape) for shape in RELEASED[name].parameters().values())
    assert counted == pytest.approx(parameters, rel=1e-3)


def test_the_large_one_is_transformers_default():
    config = GptOssConfig()
    packed = config.to_dict() | {"quantization_config": {"quant_method": "mxfp4"}}
    assert Architecture.from_config(packed) == RELEASED["openai/gpt-oss-120b"]
    assert config.max_position_embeddings == CONTEXT
