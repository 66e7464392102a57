"""Build a tiny gpt-oss checkpoint in the real file format, warm-started on the synthetic task.

    python -m scripts.make_tiny_model --out DIR [--dequantized-out DIR] [--seed N] [--steps N] [--keep]

DIR gets MXFP4 experts in sharded safetensors, config.json, tokenizer and chat template, as openai/gpt-oss-120b has
them. The second directory gets the same weights in bf16, for engines without an MXFP4 kernel.

The weights are kept in scripts/tiny_model. With another seed or number of steps, or after a change of the code that
they depend on, the model is trained: two to four minutes on one core. `--keep` then replaces the kept weights.
A second call with the same arguments and code checks the files and returns.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo.stack import command

MANIFEST = "build.json"
STEPS = 600
# With one thread, sums round the same everywhere, and other work on the cores does not stall thread barriers.
THREADS = 1
SHARD_BYTES = 400_000
HELD_OUT = 256
STEP_SECONDS = 0.4  # on a slow core
_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = (
    "scripts/make_tiny_model.py",
    "scripts/dequantize_checkpoint.py",
    "scripts/checkpoint_writer.py",
    "scripts/tiny_model",
    "grpo/model/architecture.py",
    "grpo/model/model_files.py",
    "grpo/model/mxfp4.py",
    "grpo/model/model_reader.py",
    "grpo/model/mxfp4_kernel.py",
    "grpo/model/csrc",
    "data/instructions.py",
    "data/synthetic.py",
)


def fingerprint(seed: int, steps: int) -> str:
    """Return a hash of everything that determines the files: the arguments, our code, the libraries."""
    digest = hashlib.sha256(f"seed {seed} steps {steps}".encode())
    for library in ("torch", "transformers", "tokenizers", "safetensors"):
        digest.update(f" {library} {version(library)}".encode())
    for source in _SOURCES:
        path = _ROOT / source
        for file in sorted(path.glob("*.*")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def is_built(directory: Path, wanted: str) -> bool:
    """Say whether the directory holds exactly the files that a finished build with this fingerprint wrote."""
    if not (directory / MANIFEST).is_file():
        return False
    manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    return manifest["fingerprint"] == wanted and manifest["files"] == _file_hashes(directory)


def _file_hashes(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.iterdir() if path.name != MANIFEST)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def build(directory: Path, wanted: str, fill: Callable[[Path], dict]) -> dict:
    """Let `fill` write the files to a temporary folder, then rename it: a directory under its name is always complete.

    Returns the facts about the model that `fill` returned, even if the files already existed.

    Raises:
        FileExistsError: if the directory holds something that this script did not create.
    """
    if not is_built(directory, wanted):
        _refuse_foreign(directory)
        aside = directory.with_name(directory.name + ".building")
        shutil.rmtree(aside, ignore_errors=True)  # left by a build that was killed
        aside.mkdir()
        facts = fill(aside)
        manifest = {"fingerprint": wanted, "facts": facts, "files": _file_hashes(aside)}
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if directory.exists():
            shutil.rmtree(directory)
        os.rename(aside, directory)
    return json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["facts"]


def _refuse_foreign(directory: Path) -> None:
    if directory.exists() and (
        not directory.is_dir() or (any(directory.iterdir()) and not (directory / MANIFEST).is_file())
    ):
        raise FileExistsError(f"{directory} was not made by this script: remove it, or choose another folder")


@contextmanager
def hold_build_lock(directory: Path) -> Iterator[None]:
    """Make concurrent builds of the same directory wait for each other; the second finds it built."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(directory.with_name(directory.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def print_phase(phase: str) -> None:
    """Print the present phase, and about how long it takes on one slow core."""
    print(f"tiny model: {phase}", flush=True)


def write_model(directory: Path, seed: int, steps: int) -> dict:
    """Write the MXFP4 checkpoint, of kept weights or after a training; return its facts."""
    # Heavy imports are here so that a cached call returns at once.
    print_phase("loading libraries (about 10 seconds)")
    import torch
    from huggingface_hub import save_torch_state_dict
    from transformers import AutoTokenizer

    from scripts.tiny_model import checkpoint, weights
    from scripts.tiny_model.tokenizer import STOP_TOKENS, write_tokenizer
    from scripts.tiny_model.warm_start import tiny_config, warm_start

    torch.set_num_threads(THREADS)
    write_tokenizer(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    # Rows beyond the last token, as in the real vocabulary of 201,088.
    vocab_size = (len(tokenizer) // 64 + 1) * 64
    kept = weights.facts(seed, steps)
    if kept:
        tensors = weights.read()
    else:
        print_phase(f"warm start, {steps} training steps on one core (about {round(steps * STEP_SECONDS)} seconds)")
        tensors = dict(checkpoint.packed_tensors(warm_start(tokenizer, vocab_size, steps, seed)))
    stop_ids = tokenizer.convert_tokens_to_ids(list(STOP_TOKENS))
    checkpoint.write_config(directory, tiny_config(vocab_size), stop_ids, tokenizer.pad_token_id)
    save_torch_state_dict(dict(sorted(tensors.items())), directory, max_shard_size=SHARD_BYTES)
    return kept or {
        "seed": seed,
        "steps": steps,
        "parameters": checkpoint.count_parameters(tensors),
        "vocabulary": [len(tokenizer), vocab_size],
        "accuracy": accuracy(directory, seed),
        "held_out": HELD_OUT,
    }


def accuracy(directory: Path, seed: int) -> float:
    """Return the share of held-out problems that the checkpoint as stored answers right."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import Mxfp4Config

    from scripts.tiny_model.accuracy import sampled_accuracy

    print_phase("evaluating it on held-out problems (about 20 seconds)")
    written = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.bfloat16,
        attn_implementation="eager",
        quantization_config=Mxfp4Config(dequantize=True),
    ).eval()
    return sampled_accuracy(written, AutoTokenizer.from_pretrained(directory), HELD_OUT, seed)


def write_dequantized(directory: Path, source: Path, facts: dict) -> dict:
    """Write the bf16 copy of `source`."""
    print_phase("writing a bf16 copy for engines without MXFP4 (a few seconds)")
    from scripts.dequantize_checkpoint import dequantize_checkpoint

    dequantize_checkpoint(source, directory)
    return facts


def make(out: Path, dequantized_out: Path | None, seed: int, steps: int = STEPS) -> dict:
    """Build what is missing or stale; return the facts of the model."""
    wanted = fingerprint(seed, steps)
    for directory in filter(None, (out, dequantized_out)):
        _refuse_foreign(directory)
    with hold_build_lock(out):
        facts = build(out, wanted, lambda aside: write_model(aside, seed, steps))
    if dequantized_out:
        with hold_build_lock(dequantized_out):
            build(dequantized_out, wanted, lambda aside: write_dequantized(aside, out, facts))
    return facts


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 2, with the reason on stderr, if it refuses."""
    started = time.monotonic()
    parser = command.parser("scripts.make_tiny_model", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the MXFP4 checkpoint")
    parser.add_argument("--dequantized-out", type=Path, help="directory of the bf16 copy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps of the warm start")
    parser.add_argument("--keep", action="store_true", help="keep the weights with the code, for all later calls")
    arguments = parser.parse_args(argv)
    if arguments.dequantized_out and arguments.dequantized_out.resolve() == arguments.out.resolve():
        parser.error("--dequantized-out and --out must differ")
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    try:
        facts = make(arguments.out, arguments.dequantized_out, arguments.seed, arguments.steps)
    except FileExistsError as error:
        print(f"make_tiny_model: {error}", file=sys.stderr)
        return 2
    except PackageNotFoundError as error:  # a setup was interrupted
        print(f"make_tiny_model: {error.name} is missing: run ./scripts/setup.sh", file=sys.stderr)
        return 2
    if arguments.keep:
        from scripts.tiny_model import weights

        weights.keep(sorted(arguments.out.glob("*.safetensors")), facts)
    used, rows = facts["vocabulary"]
    print(f"tiny gpt-oss: {facts['parameters']:,} parameters, {used} tokens in {rows} rows, seed {facts['seed']}")
    for directory in filter(None, (arguments.out, arguments.dequantized_out)):
        size = sum(path.stat().st_size for path in directory.iterdir())
        print(f"  {directory}: {size / 1e6:.1f} MB")
    score = f"{facts['accuracy']:.1%} of {facts['held_out']}, one sample each"
    print(f"  held-out exact match of this model on its own sums and differences, not on your data: {score}")
    print(f"  {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    command.run(main)  # what it does not finish, the next call builds again
