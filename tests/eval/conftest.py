from pathlib import Path

import pytest

from eval.problems import EvalProblem
from scripts.checkpoint_writer import dequantize_checkpoint
from tests.conftest import write_tokenizer_with_stops


@pytest.fixture(scope="session")
def model(checkpoint, tmp_path_factory) -> Path:
    """A bf16 copy of the random checkpoint, with a tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "bf16"
    dequantize_checkpoint(checkpoint, folder)
    write_tokenizer_with_stops(folder)
    return folder


@pytest.fixture
def problems() -> list[EvalProblem]:
    """Three problems with the answers 10, 11 and 12."""
    return [EvalProblem(f"p{number}", f"What is {number} plus 10?", str(10 + number), "sums") for number in range(3)]
