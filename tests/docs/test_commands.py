"""Every command of the documentation is valid as written."""

import argparse
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from functools import cache

import pytest

from grpo.flags.parser import make_parser
from grpo.flags.upstream import parse_given
from grpo.stack.problem import UserError
from tests.docs.pages import ROOT, list_pages

LANGUAGES = {"bash", "text", "python", "json", "mermaid"}
# Programs whose arguments are not ours; "python" runs a script of another project.
FOREIGN = {
    *("cd", "cp", "export", "git", "hf", "kubectl", "llama-server", "ollama", "pip", "pre-commit"),
    *("python", "ray", "rm", "sbatch", "sha256sum", "tar", "uv", "vllm"),
}
FOLDERS = ("data", "eval", "grpo", "patches", "reward", "scripts", "benchmarks")
# Read by torch, urllib, W&B and openai-harmony.
READ_BY_PACKAGES = {"CUDA_HOME", "HTTPS_PROXY", "ALL_PROXY", "WANDB_API_KEY", "WANDB_MODE", "TIKTOKEN_ENCODINGS_BASE"}
BEGINS = ("./", "scripts/", "python -m ", "source ")


@cache
def list_variables() -> set[str]:
    """The variables that train_grpo.sh, the code by name, or a package reads."""
    files = [file for folder in FOLDERS for end in ("py", "sh") for file in sorted((ROOT / folder).rglob(f"*.{end}"))]
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "train_grpo.sh", *files))
    named = re.findall(r"""\$\{?([A-Z]\w+)|["']([A-Z][A-Z0-9_]+)["']""", code)
    return READ_BY_PACKAGES.union(*named)


class Parsed(Exception):
    """The arguments were accepted; nothing after that is to happen."""


def list_commands() -> list[tuple[str, str]]:
    """The commands of all blocks of bash: page and command, with its assignments and without comments."""
    listed = []
    for page in list_pages():
        for language, block in page.blocks:
            if language == "bash":
                lines = block.replace("\\\n", " ").splitlines()
                parts = (part for line in lines for part in re.sub(r"(^| )#.*", "", line).split("&&"))
                listed += [(page.name, part.strip()) for part in parts if part.strip()]
    return listed


def list_inline_commands() -> list[tuple[str, str]]:
    """The commands in code spans."""
    return sorted(
        {(page.name, span) for page in list_pages() for span in page.spans if span.startswith(BEGINS[:1] + BEGINS[2:])}
    )


def make_ids(values: list[tuple[str, str]]) -> list[str]:
    return [f"{page}: {command}" for page, command in values]


def parse(module: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """Let a module's own main parse these words, which have to be right; return its last parser."""
    real, last = argparse.ArgumentParser.parse_args, []

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        real(self, args, namespace)
        last.append(self)
        raise Parsed

    has_main = importlib.util.find_spec(f"{module}.__main__") if "." not in module or _is_package(module) else None
    program = importlib.import_module(f"{module}.__main__" if has_main else module)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises((Parsed, SystemExit)) as ended:
        program.main()
    if isinstance(ended.value, SystemExit):
        assert ended.value.code == 0 and "--help" in words
    return last[0] if last else argparse.ArgumentParser()


def _is_package(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None


def check(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail for a command that cannot be called so; nothing is run but what prints a help text."""
    words = shlex.split(command)
    while match := re.fullmatch(r"(\w+)=.*", words[0]):
        assert match[1] in list_variables(), f"{match[1]} is read nowhere"
        words.pop(0)
    program, rest = words[0].removeprefix("./"), words[1:]
    if words[:2] == ["python", "-m"]:
        parse(words[2], words[3:], monkeypatch)
    elif program == "apply_patches.sh":
        parse("patches", rest, monkeypatch)
    elif program == "train_grpo.sh":
        try:
            parse_given(make_parser(), [word for word in rest if word != "--help"])
        except UserError as error:
            raise AssertionError(str(error)) from error
    elif program in ("scripts/setup.sh", "scripts/test.sh"):
        assert (ROOT / program).is_file()
        done = subprocess.run([ROOT / program, *rest, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        known = done.stdout if program.endswith("setup.sh") else done.stdout + "-k"
        assert [word for word in rest if word.startswith("-") and word not in known] == []
        assert [word for word in rest if "/" in word and not (ROOT / word).exists()] == []
    elif program == "scripts/lock.sh":  # it has no --help: its head comment is its documentation
        head = (ROOT / program).read_text().partition("set -")[0]
        assert [word for word in rest if not re.search(rf"{word}(?![\w-])", head)] == []
    elif program.startswith("docs/"):
        assert (ROOT / program).is_file()
    elif program == "source":
        assert len(rest) == 1 and (ROOT / rest[0]).is_file()
    elif program == "export":
        assert [word for word in rest if word.partition("=")[0] not in list_variables()] == []
    else:
        assert program in FOREIGN


@pytest.mark.parametrize(("page", "command"), list_commands(), ids=make_ids(list_commands()))
def test_a_command_can_be_called(page: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(command, monkeypatch)


@pytest.mark.parametrize(("page", "command"), list_inline_commands(), ids=make_ids(list_inline_commands()))
def test_a_command_in_a_sentence_has_its_options(page: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    if words[:2] == ["python", "-m"]:
        module, options = words[2], [word for word in words[3:] if word.startswith("--")]
        assert importlib.util.find_spec(module) is not None
        if options:
            monkeypatch.setattr(argparse.ArgumentParser, "error", lambda self, message: None)
            parser = parse(module, [], monkeypatch)
            assert set(options) <= parser._option_string_actions.keys()
    else:
        check(command, monkeypatch)


def test_there_are_commands() -> None:
    assert len(list_commands()) > 50 and len(list_inline_commands()) > 15


def test_other_blocks_contain_no_commands() -> None:
    blocks = [(page.name, language, block) for page in list_pages() for language, block in page.blocks]
    assert {language for _, language, _ in blocks} <= LANGUAGES
    hidden = [
        (name, line)
        for name, language, block in blocks
        for line in block.splitlines()
        if language != "bash" and line.startswith(BEGINS) and line.strip() not in ("scripts/",) and "  " not in line
    ]
    assert hidden == []
