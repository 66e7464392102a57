"""A rank of the rung "all-reduce": sums over all ranks, gathers bf16 and bytes, and reports GB/s per rank."""

import torch
import torch.distributed as dist

from benchmarks.measure import time_in_turn
from benchmarks.ranks import read_job, report


def main() -> None:
    job = read_job()
    device = torch.device(job["device"])
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    values = torch.full((job["megabytes"] << 19,), rank + 1, dtype=torch.bfloat16, device=device)  # 2 bytes each
    dist.all_reduce(values)
    right = bool((values == ranks * (ranks + 1) // 2).all())
    part = torch.full((len(values) // ranks,), rank + 1, dtype=torch.bfloat16, device=device)
    whole = torch.empty(ranks * len(part), dtype=torch.bfloat16, device=device)
    dist.all_gather_into_tensor(whole, part)
    packed = torch.empty(ranks * len(part), dtype=torch.uint8, device=device)  # as packed experts are gathered
    dist.all_gather_into_tensor(packed, part.to(torch.uint8))
    for received in (whole, packed):
        right &= bool((received.view(ranks, -1) == torch.arange(1, ranks + 1, device=device)[:, None]).all())
    values.zero_()
    ways = {"reduce": lambda: dist.all_reduce(values), "gather": lambda: dist.all_gather_into_tensor(whole, part)}
    seconds = time_in_turn(ways, 5, device)
    share = (ranks - 1) / ranks / 1e9  # what a rank's link carries: NCCL's tests call it bus bandwidth
    dist.barrier()
    report(
        right=right,
        all_reduce=2 * share * values.nbytes / seconds["reduce"],
        all_gather=share * whole.nbytes / seconds["gather"],
    )


if __name__ == "__main__":
    main()
