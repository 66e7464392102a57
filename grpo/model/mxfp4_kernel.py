"""Builds and loads csrc/mxfp4.cpp: `python -m grpo.model.mxfp4_kernel` compiles it unless it is already built.

The setup runs this module, so it uses only the standard library. The library's name contains the hash of its source,
so an edited source always triggers a rebuild.
"""

import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("csrc") / "mxfp4.cpp"
# No -march=native: an environment may be used on a machine other than the one that built it.
FLAGS = ("-std=c++17", "-O3", "-mavx2", "-pthread", "-shared", "-fPIC")


def library() -> Path:
    """Return the path of the compiled kernel, built or not; scripts/env.sh sets its folder."""
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    return folder / "mxfp4" / f"mxfp4-{digest}.so"


def build() -> bool:
    """Compile the kernel with $CXX or c++, in a few seconds. Returns False if there was one that loads.

    Raises:
        OSError: if there is no compiler or the folder is not writable.
        subprocess.CalledProcessError: if compiling fails; its `stderr` holds the compiler's messages.
    """
    target = library()
    if target.exists() and loads():
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [os.environ.get("CXX") or "c++", *FLAGS, str(SOURCE), "-o", f"{folder}/kernel.so"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(f"{folder}/kernel.so", target)
    return True


def loads() -> bool:
    """Return whether the compiled kernel loads, in a process of its own: a damaged one may end it."""
    command = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(library())]
    return not subprocess.run(command, capture_output=True).returncode


@functools.cache
def load() -> ctypes.CDLL | None:
    """Return the kernel, or None if it is not built. Its functions release the GIL."""
    if not library().exists():
        return None
    kernel = ctypes.CDLL(str(library()))
    kernel.mxfp4_dequantize.restype = None
    kernel.mxfp4_dequantize.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_int]
    return kernel


def main() -> int:
    """Build the kernel. If that fails, print the compiler's messages to stderr and return 1."""
    try:
        built = build()
    except (OSError, subprocess.CalledProcessError) as error:
        print(getattr(error, "stderr", None) or error, file=sys.stderr)
        return 1
    if built:
        print(f"compiled {library()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
