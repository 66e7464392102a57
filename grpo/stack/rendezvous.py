"""How a run's processes on one machine find each other: on loopback, through files in the run's private folder.

PyTorch's TCPStore listens on all interfaces without authentication. Anyone who reaches the port can read and write what
the ranks tell each other. A FileStore in a folder of mode 0700 has no port at all. torch's own tests of NCCL and gloo
use such files.
"""

import contextlib
import fcntl
import importlib
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the launcher imports this module for the variables, without PyTorch
    from torch.distributed import Store

# The rendezvous folder. If unset, processes use PyTorch's own rendezvous, as in a joined cluster.
FOLDER_VARIABLE = "GRPO_RENDEZVOUS_DIR"

# Held while this process lives, so that a port names only one group.
_held: list[object] = []


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables that keep a run's sockets on this machine, given its private folder's path."""
    return {
        FOLDER_VARIABLE: str(folder),
        # gloo and NCCL listen on this interface. They do not authenticate either.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "VLLM_HOST_IP": "127.0.0.1",
    }


def install() -> None:
    """Make `init_process_group` in this process use files if FOLDER_VARIABLE is set; otherwise do nothing.

    `env://` and `tcp://HOST:PORT` both get their store from the function that this replaces. The port still names the
    group, but nothing listens on it, so another program may use it.
    """
    if FOLDER_VARIABLE in os.environ:
        # Imported by string: torch.distributed has a function with the same name as this module.
        importlib.import_module("torch.distributed.rendezvous").__dict__["_create_c10d_store"] = _file_store


def _file_store(
    hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
) -> "Store":
    """Return the store of the group that would have met at `hostname:port`."""
    from torch.distributed import FileStore

    folder = Path(os.environ[FOLDER_VARIABLE])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if rank == 0:
        _claim(folder, port)
    store = FileStore(str(folder / str(port)), world_size)
    store.set_timeout(timeout)
    return store


def _claim(folder: Path, port: int) -> None:
    """Make `port` the name of this process's group for as long as the process lives."""
    claim = (folder / f"{port}.claim").open("w")
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RuntimeError(f"two groups of ranks chose port {port} as their name: start again") from None
    holder = socket.socket()
    # The run's next group asks the kernel for a free port, and so for another name. A stranger's port needs no holder.
    with contextlib.suppress(OSError):
        holder.bind(("127.0.0.1", port))
    _held.extend((claim, holder))
