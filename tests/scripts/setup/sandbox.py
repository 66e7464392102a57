"""A checkout in which the setup script runs without network: a stand-in uv installs the two packages of a lock."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Writes each locked package's metadata as uv does, INSTALLER last.
STAND_IN_UV = """#!{python}
import os, pathlib, signal, sys, time
root = pathlib.Path(__file__).parents[2]
if "--version" in sys.argv:
    print("uv {version}")
    sys.exit()
site = next((root / ".venv" / "lib").glob("python3.*/site-packages"))
if "freeze" in sys.argv:
    for folder in site.glob("*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        print(name.replace("_", "-") + "==" + version)
    sys.exit()
with open(root / "uv-calls", "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if "uninstall" in sys.argv:
    for name in sys.argv[sys.argv.index("--python") + 2 :]:
        for folder in site.glob(name.replace("-", "_") + "-*.dist-info"):
            (folder / "INSTALLER").unlink()
    sys.exit()
until = time.monotonic() + float(os.environ.get("UV_WAITS", 0))
while time.monotonic() < until and not (root / "uv-goes-on").exists():
    time.sleep(0.05)
for line in pathlib.Path(sys.argv[-1]).read_text().split():
    name, _, version = line.replace("-", "_").partition("==")
    for old in site.glob(name + "-*.dist-info"):
        [file.unlink() for file in old.iterdir()]
        old.rmdir()
    info = site / f"{{name}}-{{version}}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {{name}}\\nVersion: {{version}}\\n")
    (info / "RECORD").write_text("")
    if os.environ.get("UV_DIES_AT") == name:
        os.killpg(0, signal.SIGKILL)
    (info / "INSTALLER").write_text("uv")
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run_setup(root: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(root / "scripts" / "setup.sh"), *arguments],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        start_new_session=True,
    )


def read_lock(path: Path) -> dict[str, str]:
    """Return the versions of a lock, by name."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE))


def count_uv_calls(root: Path) -> int:
    calls = root / "uv-calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0
