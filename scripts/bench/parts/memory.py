"""How much memory a process has held at most (Linux: /proc)."""

from pathlib import Path


def resident() -> int:
    """Bytes that this process holds in memory now."""
    return _status("VmRSS")


class Peak:
    """The most that this process has held since the object was made."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets the peak back to what is held now
        self._before = resident()

    def growth(self) -> int:
        """Bytes that the peak lies above what was held at the beginning; mapped files count."""
        return _status("VmHWM") - self._before


def read_bytes() -> int:
    """Bytes that this process has read so far by system calls, not by mapped files."""
    text = Path("/proc/self/io").read_text(encoding="ascii")
    return int(text.partition("rchar: ")[2].split()[0])


def mapped_bytes(folder: Path) -> int:
    """Bytes of mapped files below `folder` that were looked at: whole pages, and neighbours that the kernel adds."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if not line.split(maxsplit=1)[0].endswith(":"):  # the head of a mapping: addresses, rights, ..., path
            inside = f" {folder}/" in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def _status(key: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024
