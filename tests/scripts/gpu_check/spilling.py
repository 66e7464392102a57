"""Compiles a kernel that needs more registers than there are, and prints the report: `python -m ...spilling`."""

import json
from dataclasses import asdict

import torch
import triton
import triton.language as tl

from scripts.gpu_check.compile import driver
from scripts.gpu_check.compile.report import ACTOR, CARDS, Kernel, Report


@triton.jit
def greedy(values, out, SIZE: tl.constexpr):
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    tile = tl.load(values + row * SIZE + column)
    tl.store(out + row * SIZE + column, tl.dot(tile, tile))


if __name__ == "__main__":
    report = Report("sm_90", {})
    driver.install(CARDS["sm_90"], lambda *found: report.kernels.append(Kernel(ACTOR, "a test", *found)))
    values = torch.empty(256, 256, dtype=torch.bfloat16, device="meta")
    greedy[(1,)](values, torch.empty(256, 256, device="meta"), SIZE=256, num_warps=4)
    print(json.dumps(asdict(report)))
