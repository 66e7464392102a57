"""OpenRLHF's flags from 0.10.2 on, which are dotted, under the names of 0.9.3: `--lora_rank` for `--ds.lora.rank`.

Our code and saved runs know the names of 0.9.3 alone. OpenRLHF's code reads sections,
`args.ds.lora.rank`. Both see one set of values.
"""

import argparse
from typing import Any

from grpo.stack.upstream.flags import DOTTED

NAMES = {dotted: name for name, dotted in DOTTED.items()}
# Of 0.9.3, where they differ: prompt and response have a limit each, and not one together.
_DEFAULTS = {"max_len": None, "generate_max_len": 1024, "micro_rollout_batch_size": 8, "micro_train_batch_size": 4}
_OTHER_ESTIMATORS = ("flash_reinforce",)  # for prompts with one rollout


def rename_flags(parser: argparse.ArgumentParser) -> None:
    """Give the flags of OpenRLHF's parser names and defaults of 0.9.3; the dotted names stay as aliases.

    Dotted flags without a name belong to what we replace or leave out: they keep their defaults, and the command line
    no longer takes them. Flags of 0.9.3 that our loop reads and OpenRLHF has dropped come back.
    """
    for action in [each for each in parser._actions if "." in each.dest]:
        if action.dest in NAMES:
            action.dest = NAMES[action.dest]
            action.default = _DEFAULTS.get(action.dest, action.default)
            action.option_strings = [f"--{action.dest}"]  # help and errors name no other
            parser._option_string_actions[f"--{action.dest}"] = action
        else:
            for option in action.option_strings:
                del parser._option_string_actions[option]
            action.container._remove_action(action)  # type: ignore[attr-defined]
            parser.set_defaults(**{action.dest: action.default})
    estimators = parser._option_string_actions["--advantage_estimator"]
    estimators.choices = [name for name in estimators.choices or () if name not in _OTHER_ESTIMATORS]
    parser.add_argument("--prompt_max_len", type=int, default=1024, help="tokens of the longest prompt")
    parser.add_argument("--enable_vllm_is_correction", action="store_true", help="weight tokens by trainer / engine")
    parser.add_argument("--vllm_is_correction_type", default="tis", choices=["tis", "icepop", "mis"])
    parser.add_argument("--vllm_is_truncated_threshold", type=float, nargs=2, default=[0.5, 5.0])


def in_sections(args: argparse.Namespace) -> "Arguments":
    """Return the arguments with OpenRLHF's sections. Takes the place of its ``hierarchize``."""
    sectioned = Arguments(**vars(args))
    sectioned.max_len = args.max_len or args.prompt_max_len + args.generate_max_len
    return sectioned


class Arguments(argparse.Namespace):
    """The arguments by the names of 0.9.3. Other attributes are OpenRLHF's sections."""

    def __getattr__(self, name: str) -> Any:
        return _at(self, name)


class Section:
    """A section of the arguments, such as ``args.ds.lora``: reads and writes the arguments themselves."""

    def __init__(self, args: Arguments, path: str) -> None:
        vars(self).update(_args=args, _path=path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of pickle and copy, which ask before the section has its attributes
            raise AttributeError(name)
        return _at(self._args, f"{self._path}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        path = f"{self._path}.{name}"
        setattr(self._args, NAMES.get(path, path), value)


def _at(args: Arguments, path: str) -> Any:
    name, values = NAMES.get(path, path), vars(args)
    if name in values:
        return values[name]
    if any(known.startswith(f"{path}.") for known in (*NAMES, *values)):
        return Section(args, path)
    raise AttributeError(f"OpenRLHF has no argument {path}")
