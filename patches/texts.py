"""The texts of the package's files: OpenRLHF's own, after the series, and as they were before hand edits."""

import warnings
from pathlib import Path

from patches import git, originals
from patches.errors import Exit, PatchError
from patches.package import Status, read_installed
from patches.series import Series, sha256
from patches.wheel import Tree, build_download_command

Texts = dict[str, bytes | None]  # path -> text, None for an absent file


def pristine_texts(target: Path, series: Series, paths: list[str], wheel: Tree | None) -> Texts:
    """Return OpenRLHF's own texts: installed, kept, or from the wheel."""
    texts: Texts = dict.fromkeys(paths)
    for path in paths:
        digest = series.pristine.get(path)
        known = (read_installed(target, path), originals.read_text(target, digest), (wheel or {}).get(path))
        texts[path] = next((text for text in known if digest and sha256(text) == digest), None)
    if unknown := [path for path in paths if texts[path] is None and path in series.pristine]:
        message = f"OpenRLHF's own text of {', '.join(unknown)} is not kept here"
        raise PatchError(Exit.NO_WHEEL, message, build_download_command(series.version))
    return texts


def patched_texts(target: Path, series: Series, wheel: Tree | None) -> Texts:
    """Return the texts of the touched files after the series, checked against the manifest and compiled."""
    pristine = pristine_texts(target, series, list(series.patched), wheel)
    texts, complaint = git.apply(pristine, series.files())
    if complaint:
        files = series.files()
        first = next(files[n - 1] for n in range(1, len(files) + 1) if git.apply(pristine, files[:n])[1])
        raise PatchError(Exit.BAD_SERIES, f"{first} does not apply:\n{complaint}")
    for path, text in texts.items():
        if sha256(text) != series.patched.get(path, ""):
            message = f"the patches turn {path} into {sha256(text)}, the manifest says {series.patched.get(path)}"
            raise PatchError(Exit.BAD_SERIES, message)
        compile_text(path, text)
    return texts


def hand_edits(target: Path, series: Series, status: Status, wheel: Tree | None) -> tuple[Texts, Texts]:
    """Return the edited files as they were left before the edit, and as they are."""
    edited = [each.path for each in status.files if each.is_edited]
    left = originals.read_record(originals.record(target, series.version)) or {}
    before: Texts = {path: originals.read_text(target, left.get(path)) for path in edited}
    unknown = [path for path in edited if before[path] is None]
    if any(each.state == "applied" for each in status.files) and set(unknown) & set(series.patched):
        before |= {path: text for path, text in patched_texts(target, series, wheel).items() if path in unknown}
        unknown = [path for path in unknown if path not in series.patched]
    return before | pristine_texts(target, series, unknown, wheel), {
        path: read_installed(target, path) for path in edited
    }


def compile_text(path: str, text: bytes | None) -> None:
    """Raise NO_COMPILE if a Python file is not valid. Writes no .pyc."""
    if text is None or not path.endswith(".py"):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise PatchError(Exit.NO_COMPILE, f"{path} does not compile once patched: {error}") from error
