"""Settings as flags of the trainer, and the trainer's flags in the words of the settings."""

import argparse
from collections.abc import Iterator, Mapping

from grpo.settings.recipe import default
from grpo.settings.setting import Setting
from grpo.settings.table import BY_FLAG, EXPORTED, SETTINGS
from grpo.stack.problem import Problem, UserError


def words(values: Mapping[str, str]) -> list[str]:
    """Return the flags for the values of all settings, given as text."""
    flags: list[str] = []
    for setting in SETTINGS.values():
        text = values[setting.name]
        other = SETTINGS.get(setting.only_with)
        if not setting.flag or not text or (other and not _is_on(other, values[other.name])):
            continue
        if setting.kind is bool:
            flags += [f"--{setting.flag}", *setting.more] if text == "1" else []
        else:
            flags += [f"--{setting.flag}", *([text] if setting.count == 1 else text.split())]
            flags += [f"--{setting.also}", text] if setting.also else []
    return flags


def _is_on(setting: Setting, text: str) -> bool:
    return text == "1" if setting.kind is bool else text not in ("", setting.default)


def add(group: argparse._ArgumentGroup) -> None:
    """Add the flags of settings that OpenRLHF lacks. A flag that is left out has the setting's default."""
    for setting in SETTINGS.values():
        if not setting.is_ours:
            continue
        about = f"{setting.name}, see docs/settings.md"
        if setting.kind is bool:
            group.add_argument(f"--{setting.flag}", action="store_true", help=about)
            continue
        group.add_argument(
            f"--{setting.flag}",
            type=setting.kind,
            nargs=setting.count if setting.count > 1 else None,
            choices=setting.choices or None,
            default=setting.value(default(setting.name)),
            help=about,
        )


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each value of a flag that fails the check of its setting."""
    for setting in SETTINGS.values():
        if setting.flag and (error := setting.problem(getattr(args, setting.flag))):
            yield error.problem


def variable_problems(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Yield each wrong value among the settings that reach workers as GRPO_* variables."""
    for name in EXPORTED:
        if f"GRPO_{name}" in environ:
            try:
                SETTINGS[name].parse_checked(environ[f"GRPO_{name}"])
            except UserError as error:
                yield error.problem


def find_setting_name(flag: str) -> str:
    """Return the setting of a flag such as "--lora_rank", and any other text as it is."""
    setting = BY_FLAG.get(flag.removeprefix("--")) if flag.startswith("--") else None
    return setting.name if setting else flag
