"""Checks the Ray cluster at RAY_ADDRESS before a run joins it; Ray then places engines and ranks.

The launcher's own machine is one of the nodes: it gets driver, controller, judge, metrics and rollouts. A cluster of
several nodes must require a token, since its ports are open to the network. Its nodes have equally many GPUs.

As a program, it is the driver that asks the nodes: it leaves nothing of Ray in the launcher.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.environments import settings as environment_settings
from grpo.launch.checks import software
from grpo.launch.config import Config
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT
from grpo.stack.command import format_count
from grpo.stack.problem import Problem
from reward import user_files

LIMIT = 240.0  # seconds for all nodes, which import Ray and this project
# After a restart: Ray needs seconds to free the GPUs of a run that failed, and a lost node may come back.
ROOM_SECONDS, LOOK_AGAIN_SECONDS = 600.0, 10.0
REMEDY = "unset RAY_ADDRESS so that the run starts Ray itself, or join a cluster that this machine is a node of"
TOKEN_REMEDY = "start it with RAY_AUTH_MODE=token and a RAY_AUTH_TOKEN and export both here, or unset RAY_ADDRESS"


@dataclass(frozen=True)
class Member:
    """A living node."""

    name: str  # of the host
    address: str  # in Ray
    gpus: int
    free: int  # unused GPUs
    is_home: bool  # this machine
    facts: dict[str, str | None] | None = None  # see software.facts; None on a cluster of one node
    error: str = ""  # why it has no facts


@dataclass
class Admission:
    """The result for a cluster: why it cannot be joined, what the user should know, and where the run's parts are."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)


def look(config: Config, run_dir: Path) -> Admission:
    """Join the cluster at RAY_ADDRESS and leave it again. Takes some seconds; does nothing without RAY_ADDRESS."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return Admission()
    cluster = f"the cluster at RAY_ADDRESS {address}"
    folders = [config.args.ckpt_path, config.args.metrics_dir, str(run_dir)]
    with contextlib.ExitStack() as marks:  # by which another node recognizes the folders
        seen = {
            marks.enter_context(tempfile.NamedTemporaryFile(dir=parent, prefix=".grpo-")).name: str(parent)
            for parent in {machine.existing_parent(Path(folder)) for folder in folders}
        }
        members, is_open, why = _ask([*_own_paths(config), *seen])
    if members is None:
        token = "" if _has_token() else "; if it requires a token, export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        return Admission([Problem(f"{cluster} cannot be joined: {why}", REMEDY + token)])
    names = ", ".join(member.name for member in members)
    if not any(member.is_home and member.name == socket.gethostname() for member in members):
        return Admission([Problem(f"{cluster} runs on other machines: {names}", f"start the run there, or {REMEDY}")])
    if is_open and len(members) > 1:
        what = f"{cluster} has {format_count(len(members), 'node')} ({names}) and admits anyone who can reach it"
        return Admission([Problem(what, TOKEN_REMEDY)])
    risk = f"WARNING: {cluster} is open: anyone who can reach it can run code as its user and read this run's keys; "
    problems = [*_check_gpus(config, members), *_compare(config, members, seen)]
    return Admission(problems, [risk + TOKEN_REMEDY] if is_open else [], _describe(config, members))


def _own_paths(config: Config) -> list[str]:
    """Return the models, and the user's own files that engines read."""
    paths = [config.args.pretrain, config.args.engine_model or config.args.pretrain]
    paths += [str(file.path.absolute()) for file in user_files.from_environment()]
    if environment_settings.has_environment(config.args):
        given = environment_settings.variables()
        files = [*given.get("ENVIRONMENT", "").split(), given.get("LIBRARY", "")]
        paths += [str(Path(file).absolute()) for file in files if file and Path(file).exists()]
    return list(dict.fromkeys(paths))


def _check_gpus(config: Config, members: Sequence[Member]) -> Iterator[Problem]:
    """Yield why engines and ranks have no room, if the GPUs of every node are in a row: ranks first, engines last."""
    having, width = [member for member in members if member.gpus], config.args.vllm_tensor_parallel_size
    counts = ", ".join(f"{member.address} has {member.free} of {member.gpus}" for member in members)
    if config.gpus > sum(member.free for member in members):
        need = f"the run needs {format_count(config.gpus, 'GPU')}"
        yield Problem(
            f"{need}, but too few are free in the cluster at RAY_ADDRESS: {counts}",
            "lower --vllm_num_engines, --vllm_tensor_parallel_size or --actor_num_gpus_per_node, add a node, or "
            "wait until others free GPUs",
        )
    if len(having) < 2:
        return
    if config.args.colocate_all_models:  # an engine could span two: Ray chooses the nodes of shared GPUs
        yield Problem(
            f"--colocate_all_models is for one node, but the cluster at RAY_ADDRESS has {len(having)}",
            "give --no-colocate_all_models, or unset RAY_ADDRESS so that the run starts Ray itself",
        )
    if any(member.free != member.gpus or member.gpus != having[0].gpus for member in having):
        yield Problem(
            f"the nodes of the cluster do not have equally many free GPUs: {counts}",
            "start Ray with the same --num-gpus on each, and wait until nobody else uses them",
        )
    elif having[0].gpus % width:
        yield Problem(
            f"an engine of --vllm_tensor_parallel_size {width} would span two nodes of {having[0].gpus} GPUs",
            f"set --vllm_tensor_parallel_size to a divisor of {having[0].gpus}",
        )


def _compare(config: Config, members: Sequence[Member], marks: dict[str, str]) -> Iterator[Problem]:
    """Yield how other nodes differ from this one, and which folders they do not see."""
    home = next(member for member in members if member.is_home)
    for member in members:
        if member.error:
            yield Problem(f"node {member.address} cannot run this checkout: {member.error}", software.SAME)
        elif member.facts and home.facts and not member.is_home:
            same = {name: value for name, value in home.facts.items() if name not in marks}
            yield from software.compare(member.address, same, member.facts)
            unseen = {folder for mark, folder in marks.items() if member.facts[mark] is None}
            for folder in sorted(unseen) if config.actor_ranks > home.gpus else ():
                yield Problem(
                    f"node {member.address} may have actor ranks, and does not see what this node writes to {folder}",
                    "set --run-dir and --ckpt_path to a folder that all nodes share, or let the actor fit on this node",
                )


def _describe(config: Config, members: Sequence[Member]) -> list[str]:
    """Name the nodes of actor and engines, in lines for people; [] on a cluster of one node."""
    gpus = [member.address for member in sorted(members, key=lambda one: not one.is_home) for _ in range(member.gpus)]
    if len(set(gpus)) < 2:
        return []
    parts = {"actor": gpus[: config.actor_ranks], "engines": gpus[-config.engine_gpus :]}
    return [f"{name:<12}on {', '.join(dict.fromkeys(addresses))}" for name, addresses in parts.items()]


def _has_token() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "disabled") != "disabled"


def _ask(paths: list[str]) -> tuple[list[Member] | None, bool, str]:
    """Return the living nodes, whether the cluster admits anyone, and why it could not be joined."""
    why = ""
    for mode in ("disabled", os.environ["RAY_AUTH_MODE"]) if _has_token() else ("disabled",):  # open if the first works
        command = [sys.executable, "-P", "-m", "grpo.launch.supervise.joined_cluster", *paths]
        environment = {**os.environ, "RAY_AUTH_MODE": mode}
        try:
            done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return None, False, f"it did not answer within {LIMIT:.0f} s"
        if not done.returncode:
            return [Member(**row) for row in json.loads(done.stdout.splitlines()[-1])], mode == "disabled", ""
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return None, False, why


def main() -> None:
    """Print the living nodes as JSON: :class:`Member`, with facts if there are several."""
    import ray
    from ray._private import state
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from grpo.stack import cluster

    ray.init(log_to_driver=False, runtime_env=cluster.runtime_env())
    home, free = ray.get_runtime_context().get_node_id(), state.available_resources_per_node()
    living = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    task, calls = ray.remote(num_cpus=0, max_retries=0)(software.facts), {}
    for name in living if len(living) > 1 else ():
        place = NodeAffinitySchedulingStrategy(name, soft=False)
        calls[name] = task.options(scheduling_strategy=place).remote(sys.argv[1:])
    rows = []
    for name, node in living.items():
        row: dict[str, Any] = {"name": node["NodeManagerHostname"], "address": node["NodeManagerAddress"]}
        row |= {"gpus": int(node["Resources"].get("GPU", 0)), "free": int(free.get(name, {}).get("GPU", 0))}
        try:
            row["facts"] = ray.get(calls[name]) if calls else None
        except ray.exceptions.RayError as error:
            row["error"] = str(error).strip().splitlines()[-1]
        rows.append(row | {"is_home": name == home})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
