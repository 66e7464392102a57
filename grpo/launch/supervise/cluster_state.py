"""Prints the state of a run's cluster, and what the run's processes on its other nodes are doing.

It is a driver of its own, with limits of its own: the cluster may be what hangs.
"""

import os

import ray
from ray._private import state

from grpo.launch.supervise import examination, processes
from grpo.stack import cluster, seats


def main() -> None:
    """Print nodes, free resources, and actors; then the stacks on each other node."""
    ray.init(log_to_driver=False, runtime_env=cluster.runtime_env())
    for node in ray.nodes():
        print("node", node["NodeManagerHostname"], "alive" if node["Alive"] else "dead", node["Resources"])
    print("free", ray.available_resources())
    for actor in state.actors().values():
        print("actor", actor["ActorClassName"], actor["State"], "pid", actor["Pid"], flush=True)
    places = seats.read()
    others = places.others if places else ()
    look, run_id = ray.remote(examination.examine_node), os.environ[processes.RUN_ID_VARIABLE]
    calls = {address: look.options(**cluster.make_node_options(address)).remote(run_id) for address in others}
    for address, call in calls.items():
        try:
            found = ray.get(call, timeout=examination.LIMIT)
        except ray.exceptions.RayError as error:  # also if time is up
            found = f"no answer: {error}"
        print(f"\n== node {address}\n{found}", flush=True)


if __name__ == "__main__":
    main()
