"""A disk in memory, which can be full without taking memory."""

import shutil
import subprocess
from pathlib import Path

SIZE = 3 * 10**9  # the launcher wants room for logs; only what is written takes memory
SPARE = 4_096  # left on a full disk


class SmallDisk:
    """A tmpfs at a folder.

    Raises:
        PermissionError: if this user may not mount one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        if self._mount(f"size={SIZE},mode=700"):
            raise PermissionError("only root may mount a disk")

    def fill(self) -> bool:
        """Leave next to nothing free; False if it is full."""
        if shutil.disk_usage(self.folder).total < SIZE // 2:
            return False
        return not self._mount(f"remount,size={shutil.disk_usage(self.folder).used + SPARE}")

    def close(self) -> None:
        """Unmount it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def _mount(self, options: str) -> int:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        return subprocess.run(command, capture_output=True).returncode
