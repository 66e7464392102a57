"""Takes the place of Ray's dashboard agent, which nothing here asks anything. Ray ends a node without an agent.

As Ray's agent does in Ray's smallest installation, it reports that it serves nothing. It ends with the node.
"""

import os
import sys
import time
from pathlib import Path

_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")


def main() -> None:
    """Write -1 for each port where Ray looks for it, and wait."""
    raylet = os.getppid()
    session = next(word.partition("=")[2] for word in sys.argv if word.startswith("--session-dir="))
    for name in _PORTS:
        file = Path(session, f"{name}_{os.environ['RAY_NODE_ID']}")
        partial = file.with_name(f".{file.name}")
        partial.write_text("-1", encoding="ascii")
        partial.rename(file)
    while os.getppid() == raylet:
        time.sleep(1.0)


if __name__ == "__main__":
    main()
