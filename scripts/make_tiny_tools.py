"""Build a tiny model that uses a tool unreliably, and the problems to train it on, all by code.

    python -m scripts.make_tiny_tools --environment python|retrieval --base DIR --out DIR

The base is the tiny model in bf16. The output folder gets mxfp4, bf16, train.jsonl, eval.jsonl and, for retrieval,
library.jsonl. It takes about a minute on one core; a second call with the same code checks the files and returns.
"""

import hashlib
import shutil
import sys
from pathlib import Path

from grpo.stack import command
from scripts import make_tiny_model
from scripts.make_tiny_model import SHARD_BYTES, THREADS, build, hold_build_lock, print_phase, write_dequantized

_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = (
    "scripts/make_tiny_tools.py",
    "scripts/tiny_model/tools.py",
    "grpo/rollout/multi_turn/python.py",
    "grpo/rollout/multi_turn/retrieval.py",
)


def make(environment: str, base: Path, out: Path) -> None:
    """Build what is missing or stale."""
    digest = hashlib.sha256(f"{environment} {make_tiny_model.fingerprint(0, make_tiny_model.STEPS)}".encode())
    for source in _SOURCES:
        digest.update((_ROOT / source).read_bytes())
    wanted = digest.hexdigest()
    out.mkdir(parents=True, exist_ok=True)
    with hold_build_lock(out / "mxfp4"):
        build(out / "data", wanted, lambda folder: write_data(environment, folder))
        facts = build(out / "mxfp4", wanted, lambda folder: write_model(environment, base, folder))
        build(out / "bf16", wanted, lambda folder: write_dequantized(folder, out / "mxfp4", facts))


def write_data(environment: str, folder: Path) -> dict:
    """Write the problems, and the library."""
    from grpo.stack.json_files import replace_rows
    from scripts.tiny_model import tools

    for split in ("train", "eval"):
        replace_rows(folder / f"{split}.jsonl", tools.rows(environment, split))
    if environment == "retrieval":
        replace_rows(folder / "library.jsonl", tools.library())
    return {}


def write_model(environment: str, base: Path, folder: Path) -> dict:
    """Write the MXFP4 checkpoint of the model that was taught."""
    print_phase("loading libraries (about 10 seconds)")
    import torch
    from huggingface_hub import save_torch_state_dict
    from tqdm import tqdm
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from scripts.tiny_model import checkpoint, tools

    torch.set_num_threads(THREADS)
    print_phase(f"teaching it to use tools in the environment {environment}, {tools.STEPS} steps (about a minute)")
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").train()
    taught = tools.teach(model, tokenizer, environment)
    losses = list(tqdm(taught, "teaching", tools.STEPS, file=sys.stdout, unit="step", leave=False, disable=None))
    leave = shutil.ignore_patterns("*.safetensors", "*.index.json", "build.json", "config.json")
    shutil.copytree(base, folder, ignore=leave, dirs_exist_ok=True)
    shutil.copy(base.parent / "mxfp4" / "config.json", folder)
    save_torch_state_dict(dict(checkpoint.packed_tensors(model)), folder, max_shard_size=SHARD_BYTES)
    return {"loss": losses[-1]}


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = command.parser("scripts.make_tiny_tools", __doc__)
    parser.add_argument("--environment", required=True, choices=["python", "retrieval"])
    parser.add_argument("--base", type=Path, required=True, help="the tiny model in bf16, with mxfp4 beside it")
    parser.add_argument("--out", type=Path, required=True, help="directory of models and data")
    arguments = parser.parse_args(argv)
    try:
        make(arguments.environment, arguments.base, arguments.out)
    except FileExistsError as error:
        print(f"make_tiny_tools: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run(main)
