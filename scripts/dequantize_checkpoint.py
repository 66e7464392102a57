"""Turn a gpt-oss checkpoint with MXFP4 experts into plain bf16 safetensors.

    python -m scripts.dequantize_checkpoint MXFP4_DIR BF16_DIR

For engines without an MXFP4 kernel, such as vLLM on a CPU. The tokenizer files are copied; config.json loses its
quantization_config. Host memory: one file of the copy.
"""

import sys
from pathlib import Path

from grpo.stack import command
from grpo.stack.problem import UserError
from scripts.checkpoint_writer import Parameters, whole_model, write_checkpoint


def dequantize_checkpoint(source: Path, target: Path) -> None:
    """Write `target`: whole, or not at all.

    Raises:
        UserError: if `source` is not a complete MXFP4 checkpoint, or the disk is too small.
    """
    model = whole_model(source)
    if not model.is_mxfp4:
        raise UserError(f"{source / 'config.json'} lacks quant_method mxfp4", "name an MXFP4 model")
    write_checkpoint(model, target, Parameters(model).read_bf16, dequantize=True)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 2, with the reason on stderr, if it refuses."""
    parser = command.parser("scripts.dequantize_checkpoint", __doc__)
    parser.add_argument("source", type=Path, metavar="MXFP4_DIR")
    parser.add_argument("target", type=Path, metavar="BF16_DIR")
    arguments = parser.parse_args(argv)
    try:
        dequantize_checkpoint(arguments.source, arguments.target)
    except (UserError, OSError) as error:
        print(f"dequantize_checkpoint: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run(main, outlives=True)
