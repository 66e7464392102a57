"""Prints the state of a run's cluster, as a driver of its own: the cluster may be what hangs."""

import ray
from ray._private import state


def main() -> None:
    """Print nodes, free resources, and actors."""
    ray.init(log_to_driver=False)
    for node in ray.nodes():
        print("node", node["NodeManagerHostname"], "alive" if node["Alive"] else "dead", node["Resources"])
    print("free", ray.available_resources())
    for actor in state.actors().values():
        print("actor", actor["ActorClassName"], actor["State"], "pid", actor["Pid"], flush=True)


if __name__ == "__main__":
    main()
