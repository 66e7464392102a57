"""Asks every node of a run for its facts, through Ray, before anything loads, and compares them.

As a program, it is the driver that asks: it leaves nothing of Ray in the launcher.
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.launch.checks import node
from grpo.launch.checks.node import Needs
from grpo.launch.config import Config
from grpo.launch.plan import Plan
from grpo.rollout.multi_turn import settings as environment_settings
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import Problem
from grpo.stack.seats import Seats
from reward import user_files

LIMIT = 240.0  # seconds for all nodes, which import Ray and this project
_ENGINES, _STORE, _PROCESSES = "engines'", "Ray's", "processes"  # in names of a plan's parts of host memory


def problems(seats: Seats, config: Config, plan: Plan, run_dir: Path) -> list[Problem]:
    """Return what makes a node unfit for its part of the run."""
    needs = {address: compute_needs(address, seats, config, plan, run_dir) for address in seats.nodes}
    tokens = write_tokens({folder for need in needs.values() for folder in need.shared})
    try:
        models = list(dict.fromkeys((config.args.pretrain, config.args.engine_model)))
        found, why = ask(seats, models=models, files=own_files(config), tokens=sorted(tokens.values()))
    finally:
        for file in tokens.values():
            Path(file).unlink(missing_ok=True)
    if found is None:
        return [
            Problem(f"the nodes of the cluster could not be checked: {why}", "see whether Ray runs on each of them")
        ]
    return list(_compare(seats, found, needs, tokens))


def _compare(
    seats: Seats, found: Mapping[str, Any], needs: Mapping[str, Needs], tokens: Mapping[str, str]
) -> Iterator[Problem]:
    home = found[seats.home]
    for address in seats.nodes:
        there = found[address]
        if "error" in there:
            yield Problem(f"node {address} cannot run this checkout: {there['error']}", node.SAME)
        elif "error" not in home:
            need = needs[address]
            files = tuple(tokens[folder] for folder in need.shared)
            yield from node.compare(address, home, there, Needs(**{**vars(need), "shared": files}))


def compute_needs(address: str, seats: Seats, config: Config, plan: Plan, run_dir: Path) -> Needs:
    """Return what a node must have for its part of the run."""
    args = config.args
    engines, ranks = seats.engines.count(address), seats.ranks.count(address)
    models = ([args.engine_model] if engines else []) + ([args.pretrain] if ranks or address == seats.home else [])
    is_shared = bool(ranks) and any(rank != seats.home for rank in seats.ranks)
    folders = (args.ckpt_path, args.metrics_dir, str(run_dir)) if is_shared else ()
    return Needs(
        gpus=engines * args.vllm_tensor_parallel_size + ranks,
        memory=compute_memory(plan, engines / len(seats.engines), ranks / len(seats.ranks)),
        store=plan.object_store_bytes,
        models=tuple(dict.fromkeys(models)),
        files=tuple(own_files(config)) if engines else (),
        shared=tuple(dict.fromkeys(folders)),
    )


def compute_memory(plan: Plan, engines: float, ranks: float) -> int:
    """Return the bytes of host memory that a node with these shares of the engines and of the ranks needs.

    Ray's object store has its own check. Processes count as those of engines and of ranks in equal parts.
    """
    total = 0.0
    for name, count in plan.host_memory.items():
        if name.startswith(_STORE):
            continue
        share = engines if name.startswith(_ENGINES) else (engines + ranks) / 2 if name.endswith(_PROCESSES) else ranks
        total += share * count
    return int(total)


def own_files(config: Config) -> list[str]:
    """Return the user's own files that engines read."""
    files = [str(file.path) for file in user_files.from_environment()]
    if environment_settings.has_environment(config.args):
        given = environment_settings.variables()
        files += [word for word in given.get("ENVIRONMENT", "").split() if Path(word).is_file()]
        files += [given["LIBRARY"]] if "LIBRARY" in given else []
    return files


def write_tokens(folders: set[str]) -> dict[str, str]:
    """Write a file with a random content in each folder, or in the nearest one above it; return them by folder."""
    tokens = {}
    for folder in sorted(folders):
        file = machine.existing_parent(Path(folder)) / f".grpo-token-{secrets.token_hex(8)}"
        file.write_text(secrets.token_hex(16), encoding="utf-8")
        tokens[folder] = str(file)
    return tokens


def ask(seats: Seats, **asked: list[str]) -> tuple[dict[str, Any] | None, str]:
    """Return the facts of each node by its address, or None and why there are none.

    Args:
        asked: the arguments of :func:`grpo.launch.checks.node.facts`.
    """
    request = json.dumps({"nodes": seats.nodes, "asked": asked})
    command = [sys.executable, "-P", "-m", "grpo.launch.supervise.node_check"]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, input=request, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None, f"they did not answer within {LIMIT:.0f} s"
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), ""


def object_stores(nodes: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the bytes of each living node's object store, by address. A node that came back is listed dead, too."""
    living = (node for node in nodes if node["Alive"])
    return {node["NodeManagerAddress"]: node["Resources"].get("object_store_memory", 0) for node in living}


def main() -> None:
    """Ask the nodes named on standard input; print their facts by address."""
    import ray

    from grpo.stack import cluster

    request = json.loads(sys.stdin.read())
    ray.init(log_to_driver=False, runtime_env=cluster.runtime_env())
    stores = object_stores(ray.nodes())
    task = ray.remote(max_retries=0)(_facts)
    calls = {
        address: task.options(**cluster.make_node_options(address)).remote(**request["asked"])
        for address in request["nodes"]
    }
    found = {}
    for address, call in calls.items():
        try:
            answer: Any = ray.get(call)
            found[address] = {**answer, "store": stores[address]}
        except (ray.exceptions.RayError, ray.exceptions.RayTaskError) as error:
            found[address] = {"error": str(error).strip().splitlines()[-1]}
    print(json.dumps(found))


def _facts(**asked: list[str]) -> dict[str, Any]:
    # Pickled by reference: the node imports it from its own checkout.
    from grpo.launch.checks import node

    return node.facts(**asked)


if __name__ == "__main__":
    main()
