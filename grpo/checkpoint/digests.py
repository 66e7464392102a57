"""SHA256SUMS: digests of a checkpoint's files, written with them and verified before use. Works without torch.

`adapter/` and `trainer/` each have their own list. An adapter can thus be verified wherever it is copied, also with
`sha256sum -c SHA256SUMS`. The last line is a comment to that tool: the digest of the lines above it, which tells a
damaged list from a damaged file.
"""

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo.model.model_files import FileFault, HeaderError, read_header
from grpo.run.run_files import RunFiles
from grpo.run.run_state import Run
from grpo.run.saved_steps import STEP_DIRECTORY, saved_steps, step_name
from grpo.stack.json_files import open_file, read_bytes

NAME = "SHA256SUMS"
PARTS = ("adapter", "trainer")  # of a step
_MORE = f"is not in {NAME}"
_SEAL = "# sha256 of the lines above: "
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)")


def write(folder: Path) -> None:
    """Write the list of a folder's files into it.

    Raises:
        OSError: if a file cannot be read or the list cannot be written.
    """
    files = sorted(folder.iterdir())
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL, and each rank has its own file
        digests = pool.map(digest_file, files)
        lines = "".join(f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    (folder / NAME).write_text(lines + _SEAL + hashlib.sha256(lines.encode()).hexdigest() + "\n", encoding="utf-8")


def is_sealed(folder: Path) -> bool:
    """Say whether a folder has a list. Checkpoints of earlier versions and adapters of other tools have none."""
    return (folder / NAME).exists()


def describe_unverified(folder: Path) -> str:
    """Return the notice to the user about a folder without a list."""
    return f"{folder} cannot be verified: it has no {NAME}, which other tools and earlier versions do not write"


def damage(folder: Path) -> list[FileFault]:
    """Compare a folder with its list. Return the differences; [] if there are none or the list is missing.

    The remedy names the newest complete step of the same run if one exists.
    """
    damaged = _damage(folder)
    if not damaged:
        return []
    remedy = find_own_remedy(damaged) or _remedy(folder)
    return [FileFault(name, what, remedy) for name, what in damaged]


def find_own_remedy(damaged: list[tuple[str, str]]) -> str:
    """Return the remedy of a folder that only holds more than was saved; "" for another one."""
    only_more = all(what == _MORE for _, what in damaged)
    return f"remove {', '.join(name for name, _ in damaged)}: no save wrote it" if only_more else ""


def step_damage(step: Path) -> list[tuple[str, str]]:
    """Return the damaged files of a `step_N` and their faults. Names begin with the part, "adapter" or "trainer"."""
    folders = [step / part for part in PARTS if (step / part).is_dir()]
    damaged = [(f"{folder.name}/{name}", what) for folder in folders for name, what in _damage(folder)]
    if any(map(is_sealed, folders)):  # a save seals both parts, so if one has a list, both must
        damaged += [(f"{folder.name}/{NAME}", "is missing") for folder in folders if not is_sealed(folder)]
    return damaged


def whole_steps(checkpoints: Path) -> list[int]:
    """Return the saved steps with both parts and no known damage, in ascending order. Reads every file."""
    folders = {step: checkpoints / step_name(step) for step in saved_steps(checkpoints)}
    both = {step: folder for step, folder in folders.items() if all((folder / part).is_dir() for part in PARTS)}
    return [step for step, folder in both.items() if not step_damage(folder)]


def _damage(folder: Path) -> list[tuple[str, str]]:
    if not is_sealed(folder):
        return []
    try:
        listed = _read(folder / NAME)
    except (OSError, ValueError) as error:
        return [(NAME, str(error))]
    files = {path.name: path for path in folder.iterdir() if path.name != NAME}
    missing = [(name, f"is missing, but {NAME} lists it") for name in listed if name not in files]
    extra = [(name, _MORE) for name in sorted(files) if name not in listed]
    with ThreadPoolExecutor() as pool:
        shared = {name: files[name] for name in listed if name in files}
        differing = [fault for fault in pool.map(_difference, shared.values(), map(listed.get, shared)) if fault]
    return missing + differing + extra


def _difference(file: Path, listed: str | None) -> tuple[str, str] | None:
    try:
        if file.suffix == ".safetensors" and read_header(file).end != file.stat().st_size:
            return (
                file.name,
                "was changed after it was saved: its header says another size",
            )  # and hashing may take hours
        is_same = digest_file(file) == listed
    except HeaderError as error:
        return file.name, str(error)
    except OSError as error:  # a failing disk, or a folder in the file's place
        return file.name, f"cannot be read ({error})"
    return None if is_same else (file.name, f"was changed after it was saved: its digest differs from {NAME}")


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


def _remedy(folder: Path) -> str:
    others = [
        (checkpoints, step) for checkpoints in _runs_checkpoints(folder) for step in reversed(whole_steps(checkpoints))
    ]
    newest = next((checkpoints / step_name(step) / "adapter" for checkpoints, step in others), None)
    return f"use {newest}, the newest complete step" if newest else "copy the folder again: no other step is complete"


def _runs_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the folders that hold the steps of a folder's run, inferred from its path."""
    absolute = folder.absolute()
    if STEP_DIRECTORY.fullmatch(absolute.parent.name):
        yield absolute.parents[1]
    elif RunFiles(absolute.parent).is_run():  # RUN/final
        yield Run(absolute.parent).ckpt_path
