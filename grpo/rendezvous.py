"""How the processes of a run on one machine find each other: on loopback, and in a file of the run's private folder.

PyTorch's TCPStore listens on all interfaces and asks nobody for a password: whoever reaches the port reads and writes
what the ranks tell each other. A FileStore in a folder of mode 0700 has no port at all. torch's own tests of NCCL and
gloo meet in such files.
"""

import importlib
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the keeper of a run asks for the variables, and does without PyTorch
    from torch.distributed import Store

# The folder where they meet. Not set: the processes meet as PyTorch has it, as in a joined cluster.
FOLDER_VARIABLE = "GRPO_RENDEZVOUS_DIR"


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
    group: callers choose a free one.
    """
    if FOLDER_VARIABLE in os.environ:
        # Not by name: torch.distributed has a function of the name of this module.
        importlib.import_module("torch.distributed.rendezvous").__dict__["_create_c10d_store"] = _file_store


def _file_store(
    hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
) -> "Store":
    """Return the store of the group that would have met at `hostname:port`.

    Raises:
        RuntimeError: where another group has met under this port: two callers were given the same one.
    """
    from torch.distributed import FileStore

    folder = Path(os.environ[FOLDER_VARIABLE])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if rank == 0:
        try:
            (folder / f"{port}.taken").touch(exist_ok=False)
        except FileExistsError:
            raise RuntimeError(f"two groups of processes were given port {port} to meet at: start again") from None
    store = FileStore(str(folder / str(port)), world_size)
    store.set_timeout(timeout)
    return store
