"""Loading the base model on several ranks: stock OpenRLHF from a copy in bf16, and ours from the MXFP4 checkpoint.

Stock does not load MXFP4, so transformers makes the copy first, in one process (`conversion_...`). The model has
gpt-oss-120b's layer sizes, but few layers and few experts. Both ways are OpenRLHF's Actor under ZeRO-3 with its
parameters on the host, for which stock has no flag; ours unpacks the experts. Memory is the processes' peak above their
initial value, summed over the ranks. Mapped files count: the first rank of stock maps the whole copy. `..._held_...` is
what remains after loading. Both must load the same numbers, which is checked.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Result
from benchmarks.machine import Copy
from benchmarks.parts.random_model import BF16_BYTES, FULL, write_random_model
from benchmarks.parts.ranks import run_ranks
from benchmarks.parts.stock import copy_pristine
from grpo.model import model_files

GB = 1e9
EXTRAPOLATED_RANKS = 4
SIZES = {"ranks": 2, "layers": 2, "experts": 16, "intermediate": 2880}


def run(options: argparse.Namespace, _: Copy) -> Result:
    with tempfile.TemporaryDirectory(prefix="bench-load-") as scratch:
        folder, bf16 = Path(scratch, "model"), Path(scratch, "bf16")
        write_random_model(folder, layers=options.layers, experts=options.experts, intermediate=options.intermediate)
        model = model_files.read_whole(folder)
        sizes = {"bf16": model.bf16_bytes, "files": model.file_bytes}
        (converted,) = run_ranks("load_worker", 1, {"model": str(folder), "target": str(bf16)})
        ways: dict[str, dict[str, Any]] = {
            "stock": {"model": str(bf16), "package": str(copy_pristine(Path(scratch, "openrlhf"))), "settings": {}},
            "ours": {"model": str(folder), "package": None, "settings": {"experts": "bf16"}},
        }
        reports = {name: run_ranks("load_worker", options.ranks, way) for name, way in ways.items()}
    if [rank["sums"] for rank in reports["stock"]] != [rank["sums"] for rank in reports["ours"]]:
        raise RuntimeError("the two ways loaded different numbers: run pytest tests/grpo/model/test_loading.py")
    return _result(options, sizes, converted, reports)


def _result(
    options: argparse.Namespace, sizes: dict[str, int], converted: dict[str, Any], reports: dict[str, Any]
) -> Result:
    peak, held = (
        {name: sum(rank[key] for rank in ranks) for name, ranks in reports.items()}
        for key in ("peak_bytes", "held_bytes")
    )
    seconds = {name: max(rank["seconds"] for rank in ranks) for name, ranks in reports.items()}
    bf16 = sizes["bf16"]
    return Result(
        what=f"memory of {options.ranks} ranks that load {options.layers} layers of {options.experts} experts "
        f"({sizes['files'] / GB:.2f} GB in files, {bf16 / GB:.2f} GB in bf16)",
        unit="GB",
        stock=peak["stock"] / GB,
        ours=peak["ours"] / GB,
        details={
            **{f"{name}_peak_over_bf16_model": count / bf16 for name, count in peak.items()},
            **{f"{name}_held_over_bf16_model": count / bf16 for name, count in held.items()},
            "ours_read_over_files": sum(rank["read_bytes"] for rank in reports["ours"]) / sizes["files"],
            **{f"{name}_s": count for name, count in seconds.items()},
            "conversion_peak_over_bf16_model": converted["peak_bytes"] / bf16,
            "conversion_s": converted["seconds"],
        },
        extrapolation=_extrapolate(options, bf16, peak, seconds),
    )


def _extrapolate(
    options: argparse.Namespace, bf16: int, peak: dict[str, int], seconds: dict[str, float]
) -> tuple[str, ...]:
    copies = {"stock": 2, "ours": 1}  # of the model, on all ranks together; the rest does not grow with the layers
    beside = {name: (count - copies[name] * bf16) / options.ranks for name, count in peak.items()}
    beside["stock"] *= FULL.experts / options.experts  # gathers of a layer
    total = {name: copies[name] * BF16_BYTES + EXTRAPOLATED_RANKS * count for name, count in beside.items()}
    scale = BF16_BYTES / bf16
    return (
        f"gpt-oss-120b on {EXTRAPOLATED_RANKS} ranks: {total['stock'] / GB:,.0f} GB stock, of which "
        f"{BF16_BYTES / GB:,.0f} GB are files that rank 0 maps, and {total['ours'] / GB:,.0f} GB ours "
        f"({total['ours'] / BF16_BYTES:.3f} times the bf16 model); {seconds['stock'] * scale:,.0f} s stock and "
        f"{seconds['ours'] * scale:,.0f} s ours on this machine",
        f"before it, stock needs a copy of {BF16_BYTES / GB:,.0f} GB, for which transformers takes at least as much "
        f"memory; and stock has no flag to keep the partitions on the host: {BF16_BYTES / EXTRAPOLATED_RANKS / GB:.0f} "
        "GB of each GPU",
        f"assumes that a rank holds {beside['stock'] / GB:,.0f} GB stock, gathers of a layer, and "
        f"{beside['ours'] / 1e6:,.0f} MB ours, an expert and Python's own, beside its partition; times in proportion "
        "to the model, files in the page cache",
    )
