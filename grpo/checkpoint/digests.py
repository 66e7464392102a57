"""SHA256SUMS: digests of a checkpoint's files, written with them and verified before use. Works without torch.

`adapter/` and `trainer/` each have their own list. An adapter can thus be verified wherever it is copied, also with
`sha256sum -c SHA256SUMS`. The last line is a comment to that tool: the digest of the lines above it, which tells a
damaged list from a damaged file.
"""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo.model.model_files import HeaderError, read_header
from grpo.stack.json_files import open_file, read_bytes

NAME = "SHA256SUMS"
PARTS = ("adapter", "trainer")  # of a step
_SEAL = "# sha256 of the lines above: "
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)")


def write(folder: Path) -> None:
    """Write the list of a folder's files into it."""
    files = sorted(folder.iterdir())
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL, and each rank has its own file
        digests = pool.map(digest_file, files)
        lines = "".join(f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    (folder / NAME).write_text(lines + _SEAL + hashlib.sha256(lines.encode()).hexdigest() + "\n", encoding="utf-8")


def is_sealed(folder: Path) -> bool:
    """Return whether a folder has a list. Adapters of other tools have none."""
    return (folder / NAME).exists()


def describe_unverified(folder: Path) -> str:
    """Return the notice to the user about a folder without a list."""
    return f"{folder} cannot be verified: it has no {NAME}, which other tools do not write"


def damage(folder: Path) -> dict[str, str]:
    """Return what is wrong with a folder's files, by name; {} if nothing is, or the list is missing.

    A file that is not in the list is not damage: nothing reads it.
    """
    if not is_sealed(folder):
        return {}
    try:
        listed = _read(folder / NAME)
    except (OSError, ValueError) as error:
        return {NAME: str(error)}
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda name: _find_fault(folder / name, listed[name]), listed)
        return {name: fault for name, fault in zip(listed, found, strict=True) if fault}


def step_damage(step: Path) -> dict[str, str]:
    """Return the same of a `step_N`. Names begin with the part, "adapter" or "trainer"."""
    folders = [step / part for part in PARTS if (step / part).is_dir()]
    damaged = {f"{folder.name}/{name}": what for folder in folders for name, what in damage(folder).items()}
    if any(map(is_sealed, folders)):  # a save seals both parts, so if one has a list, both must
        damaged |= {f"{folder.name}/{NAME}": "is missing" for folder in folders if not is_sealed(folder)}
    return damaged


def describe(damaged: dict[str, str]) -> str:
    """Return damage in one line."""
    return "; ".join(f"{name} {what}" for name, what in damaged.items())


def _find_fault(file: Path, listed: str) -> str:
    changed = "was changed after it was saved: "
    try:
        if file.suffix == ".safetensors" and read_header(file).end != file.stat().st_size:
            return f"{changed}its header says another size"  # and hashing may take hours
        return "" if digest_file(file) == listed else f"{changed}its digest differs from {NAME}"
    except HeaderError as error:
        return str(error)
    except FileNotFoundError:
        return f"is missing, but {NAME} lists it"
    except OSError as error:  # a failing disk, or a folder in the file's place
        return f"cannot be read ({error})"


def _read(file: Path) -> dict[str, str]:
    """Return the digests by name. Raises ValueError if the list itself is damaged."""
    text, seal, digest = read_bytes(file).rpartition(_SEAL.encode())
    if not seal or digest != hashlib.sha256(text).hexdigest().encode() + b"\n":
        raise ValueError("was changed after it was saved: its last line does not match the lines above it")
    matches = map(_LINE.fullmatch, text.decode().splitlines())
    return {match[2]: match[1] for match in matches if match}


def digest_file(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_file(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
