"""How the processes of a run on one machine find each other: on loopback, and in a file of the run's private folder.

PyTorch's TCPStore listens on all interfaces and asks nobody for a password: whoever reaches the port reads and writes
what the ranks tell each other. A FileStore in a folder of mode 0700 has no port at all. torch's own tests of NCCL and
gloo meet in such files.
"""

import importlib
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the keeper of a run asks for the variables, and does without PyTorch
    from torch.distributed import Store

# The folder where they meet. Not set: the processes meet as PyTorch has it, as in a joined cluster.
FOLDER_VARIABLE = "GRPO_RENDEZVOUS_DIR"

# As long as this process lives: what names a group names no other.
_held: list[socket.socket] = []


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables that keep the sockets of a run on this machine.

    Args:
        folder: of mode 0700, and of this run alone. It may be made later.
    """
    return {
        FOLDER_VARIABLE: str(folder),
        # gloo and NCCL listen on this interface. They ask for no password either.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "VLLM_HOST_IP": "127.0.0.1",
    }


def install() -> None:
    """Let `init_process_group` meet in files, in this process, where FOLDER_VARIABLE is set; else do nothing.

    `env://` and `tcp://HOST:PORT` both get their store from the function that this replaces. The port still names the
    group. Rank 0 holds it without listening, so that nobody else is given it.
    """
    if FOLDER_VARIABLE in os.environ:
        # Not by name: torch.distributed has a function of the name of this module.
        importlib.import_module("torch.distributed.rendezvous").__dict__["_create_c10d_store"] = _file_store


def _file_store(
    hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
) -> "Store":
    """Return the store of the group that would have met at `hostname:port`.

    Raises:
        RuntimeError: where somebody else has this port.
    """
    from torch.distributed import FileStore

    folder = Path(os.environ[FOLDER_VARIABLE])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if rank == 0:
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError as error:
            raise RuntimeError(f"port {port}, which names a group of ranks, is in use ({error}): start again") from None
        _held.append(holder)
    store = FileStore(str(folder / str(port)), world_size)
    store.set_timeout(timeout)
    return store
