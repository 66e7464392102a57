"""Write a tiny gpt-oss checkpoint in the real file format, warm-started on the synthetic task.

    python -m scripts.make_tiny_model --out DIR [--dequantized-out DIR]

DIR gets MXFP4 experts in sharded safetensors, config.json, tokenizer and chat template, as openai/gpt-oss-120b has
them. The second directory gets the same weights in bf16, for engines without an MXFP4 kernel.

A second call with the same code returns at once.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from grpo.stack import command

MANIFEST = "build.json"
_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = (
    "scripts/make_tiny_model.py",
    "scripts/checkpoint_writer.py",
    "scripts/tiny_model",
    "grpo/model/architecture.py",
    "grpo/model/model_files.py",
    "grpo/model/mxfp4.py",
    "grpo/model/model_reader.py",
    "grpo/model/mxfp4_kernel.py",
    "grpo/model/csrc",
)


def fingerprint() -> str:
    """Return a hash of everything that determines the files: our code, the kept weights, the libraries."""
    digest = hashlib.sha256()
    for library in ("torch", "transformers", "tokenizers", "safetensors"):
        digest.update(f" {library} {version(library)}".encode())
    for source in _SOURCES:
        path = _ROOT / source
        for file in sorted(path.glob("*.*")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def build(directory: Path, wanted: str, fill: Callable[[Path], object]) -> None:
    """Let `fill` write the files to a temporary folder, then rename it: a directory under its name is always complete.

    Concurrent builds of the same directory wait for each other; the second finds it built.

    Raises:
        FileExistsError: if the directory holds something that this script did not create.
    """
    manifest, content = directory / MANIFEST, json.dumps({"fingerprint": wanted})
    if directory.exists() and not manifest.is_file() and (directory.is_file() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} was not made by this script: remove it, or choose another folder")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(directory.with_name(directory.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if manifest.is_file() and manifest.read_text() == content:
            return
        aside = directory.with_name(directory.name + ".building")
        shutil.rmtree(aside, ignore_errors=True)  # left by a build that was killed
        aside.mkdir()
        fill(aside)
        (aside / MANIFEST).write_text(content)
        if directory.exists():
            shutil.rmtree(directory)
        os.rename(aside, directory)


def write_model(directory: Path) -> None:
    """Write the MXFP4 checkpoint of the kept weights."""
    print("tiny model: loading libraries (about 10 seconds)", flush=True)
    # Heavy imports are here so that a cached call returns at once.
    from scripts.tiny_model import checkpoint

    checkpoint.write_model(directory)


def write_dequantized(directory: Path, source: Path) -> None:
    """Write the bf16 copy of `source`."""
    print("tiny model: writing a bf16 copy for engines without MXFP4 (a few seconds)", flush=True)
    from scripts.checkpoint_writer import dequantize_checkpoint

    dequantize_checkpoint(source, directory)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 2, with the reason on stderr, if it refuses."""
    parser = command.parser("scripts.make_tiny_model", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the MXFP4 checkpoint")
    parser.add_argument("--dequantized-out", type=Path, help="directory of the bf16 copy")
    arguments, wanted = parser.parse_args(argv), fingerprint()
    try:
        build(arguments.out, wanted, write_model)
        if arguments.dequantized_out:
            build(arguments.dequantized_out, wanted, lambda aside: write_dequantized(aside, arguments.out))
    except FileExistsError as error:
        print(f"make_tiny_model: {error}", file=sys.stderr)
        return 2
    print(f"tiny gpt-oss: {arguments.out}; it knows sums and differences, not your data")
    return 0


if __name__ == "__main__":
    command.run(main)  # what it does not finish, the next call builds again
