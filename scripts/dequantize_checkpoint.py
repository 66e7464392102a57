"""Turn a gpt-oss checkpoint with MXFP4 experts into plain bf16 safetensors, shard by shard.

    python -m scripts.dequantize_checkpoint MXFP4_DIR BF16_DIR

For engines that have no MXFP4 kernel, such as vLLM on a CPU. The tokenizer files are copied; config.json loses
its quantization_config. Host memory: one shard and one expert tensor.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from grpo import mxfp4

INDEX = "model.safetensors.index.json"
COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def dequantize_checkpoint(source: Path, target: Path) -> None:
    """Write `target`, which is removed again if anything fails.

    Raises:
        FileExistsError: if `target` holds anything.
        ValueError: if `source` is no sharded MXFP4 checkpoint, or lacks the scales of some blocks.
    """
    config = _read_config(source)
    weight_map = json.loads((source / INDEX).read_text(encoding="utf-8"))["weight_map"]
    missing = [n for n in weight_map if n.endswith("_blocks") and _scales_name(n) not in weight_map]
    if missing:
        raise ValueError(f"{source / INDEX} lists {missing[0]} without {_scales_name(missing[0])}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty: remove it or choose another place")
    try:
        _write_weights(source, target, weight_map)
        config.pop("quantization_config")
        text = json.dumps(config | {"dtype": "bfloat16"}, indent=2) + "\n"
        (target / "config.json").write_text(text, encoding="utf-8")
        for name in COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, target / name)
    except BaseException:
        shutil.rmtree(target)
        raise


def _read_config(source: Path) -> dict:
    for name in ("config.json", INDEX):
        if not (source / name).is_file():
            raise ValueError(f"{source} has no {name}: give the directory of a sharded MXFP4 checkpoint")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if config.get("quantization_config", {}).get("quant_method") != "mxfp4":
        raise ValueError(f"{source / 'config.json'} has no quantization_config with quant_method mxfp4")
    return config


def _scales_name(blocks_name: str) -> str:
    return blocks_name.removesuffix("_blocks") + "_scales"


def _write_weights(source: Path, target: Path, weight_map: dict[str, str]) -> None:
    written: dict[str, str] = {}
    total = 0
    for file in sorted(set(weight_map.values())):
        names = sorted(n for n, f in weight_map.items() if f == file and not n.endswith("_scales"))
        shard = {n.removesuffix("_blocks"): _load(source, weight_map, n) for n in names}
        if shard:
            save_file(shard, target / file, metadata={"format": "pt"})
            written.update(dict.fromkeys(shard, file))
            total += sum(tensor.nbytes for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(written.items()))}
    (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _load(source: Path, weight_map: dict[str, str], name: str) -> torch.Tensor:
    def read(tensor_name: str) -> torch.Tensor:
        with safe_open(source / weight_map[tensor_name], framework="pt") as file:
            return file.get_tensor(tensor_name)

    if not name.endswith("_blocks"):
        return read(name)
    # The scales may lie in another shard than their blocks.
    return mxfp4.dequantize(read(name), read(_scales_name(name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, metavar="MXFP4_DIR")
    parser.add_argument("target", type=Path, metavar="BF16_DIR")
    arguments = parser.parse_args()
    dequantize_checkpoint(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
