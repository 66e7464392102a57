"""From `train_grpo.sh` to the launcher: options and settings in, the trainer's flags and GRPO_* variables out.

python -P -m grpo.launch.recipe RECIPE OPTION...: RECIPE is a file of settings, which scripts/launch.sh passes.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo.environments.settings import AGENT
from grpo.launch import run_dir
from grpo.launch.supervise import guard
from grpo.run import own_runs
from grpo.run.measure import OUR_REWARD, USER_REWARD
from grpo.run.progress import list_changes
from grpo.run.run_files import RunFiles
from grpo.settings import choose, flags, options, recipe
from grpo.settings.options import Options
from grpo.settings.table import EXPORTED, SETTINGS
from grpo.stack import command
from grpo.stack.checkout import TINY_MODEL
from grpo.stack.problem import UserError

_OLDER = "resume it with the version that started it, or start a new run from its adapter: ADAPTER=CHECKPOINT/adapter"
_PATHS = ("MODEL", "ENGINE_MODEL", "ADAPTER", "TRAIN_DATA", "EVAL_DATA", "REWARD", "ENVIRONMENT", "LIBRARY")


def main(lines: Sequence[str], words: Sequence[str]) -> int:
    """Launch what a command line of train_grpo.sh asks for; return the exit code.

    Args:
        lines: of the recipe.
    """
    try:
        asked = options.parse(words)
    except UserError as error:
        print(f"train_grpo.sh: {error}", file=sys.stderr)
        return 2
    given = _make_absolute(choose.select_given(os.environ) | asked.settings)
    try:
        ours = recipe.read(lines, recipe.SOURCE)
        if missing := [name for name, setting in SETTINGS.items() if setting.default is None and name not in ours]:
            raise UserError(f"{recipe.SOURCE} has no line for {', '.join(missing)}", "put it back")
        config = _make_absolute(choose.select_given(_config(asked, given)))
        values = choose.choose(asked, config | given, ours)
        for name, setting in SETTINGS.items():
            setting.value(values[name])
    except UserError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    if asked.is_tiny and asked.mode in ("run", "check") and (code := _make_tiny()):
        return code
    os.environ.update(_variables(values))
    from grpo.launch.__main__ import main as launch

    own = [f"--changes={json.dumps(choose.changes(asked, given, config, ours))}", f"--config={json.dumps(config)}"]
    own.append(f"--script={json.dumps(choose.describe_script(asked, config | given, ours))}")
    return launch([asked.mode, *own, *_options(asked, values), "--", *_flags(values), *asked.flags])


def _config(asked: Options, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of --config, and those that a resumed run has had so far.

    The launcher keeps the run's folders itself, since a run may have been moved.
    """
    file = asked.values.get("config")
    config = recipe.read_file(Path(file)) if file else {}
    if which := asked.values.get("resume"):
        folder = run_dir.find_run(which)
        recorded = RunFiles(folder).read_config()
        by_file = recorded.get("config")
        kept = {name: str(value) for name, value in by_file.items()} if isinstance(by_file, dict) else {}
        kept |= dict(list_changes(recorded))
        if gone := sorted(name for name in kept if name not in SETTINGS and not name.startswith("-")):
            raise UserError(f"{folder} has settings that no longer exist: {', '.join(gone)}", _OLDER)
        kept = {name: value for name, value in kept.items() if name not in own_runs.PLACES}
        named = {name: value for name, value in kept.items() if name not in config} | own_runs.find_places(folder)
        own_runs.refuse_others(folder, {name: value for name, value in named.items() if name not in given})
        config = kept | {name: value for name, value in config.items() if name not in own_runs.PLACES}
    return config


def _make_absolute(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings with absolute paths where there is such a file: a run may be resumed from another folder."""
    return settings | {name: _make_path_absolute(name, settings[name]) for name in _PATHS if name in settings}


def _make_path_absolute(name: str, text: str) -> str:
    """Return a path, or several files between blanks, absolute where they exist."""
    if os.path.isfile(text) or (name != "ENVIRONMENT" and os.path.isdir(text)):  # "python" is no folder
        return os.path.abspath(text)
    return " ".join(os.path.abspath(file) if os.path.isfile(file) else file for file in text.split())


def _options(asked: Options, values: Mapping[str, str]) -> list[str]:
    """Return the launcher's own options."""
    words = [f"--name={values['NAME']}", f"--options={' '.join(asked.again)}"]
    words += ["--stand-in"] if asked.is_tiny else []
    named = ("run-dir", "resume")
    return [*words, *(f"--{name}={asked.values[name]}" for name in named if asked.values.get(name))]


def _flags(values: Mapping[str, str]) -> list[str]:
    """Return the trainer's flags: those of the settings, and what every run has."""
    words = flags.words(values)
    words += ["--remote_rm_url", _program(values["REWARD"])]
    # An environment formats the chat itself.
    words += ["--agent_func_path", str(AGENT)] if values["ENVIRONMENT"] else ["--apply_chat_template"]
    # Each turn, and the answer after a cut thought, is a separate call; the engine has its prefix in the cache.
    words += ["--enable_prefix_caching"] if values["ENVIRONMENT"] or values["THINKING_BUDGET"] else []
    # Non-reentrant checkpointing fails with LoRA under ZeRO-3.
    words += ["--gradient_checkpointing_use_reentrant"] if values["GRADIENT_CHECKPOINTING"] == "1" else []
    # The actor is its own reference; OpenRLHF wants their sizes to be equal if GPUs are shared.
    words += ["--actor_num_nodes", "1", "--ref_num_nodes", "1", "--zero_stage", "3", "--logging_steps", "1"]
    return [*words, "--input_key", "prompt", "--label_key", "label"]


def _variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for every worker. Paths become absolute."""
    exported = {name: values[name] for name in EXPORTED}
    environments = _files(values["ENVIRONMENT"])
    exported["ENVIRONMENT"] = " ".join(os.path.realpath(one) if os.path.isfile(one) else one for one in environments)
    if os.path.exists(values["LIBRARY"]):
        exported["LIBRARY"] = os.path.realpath(values["LIBRARY"])
    own = _files(values["REWARD"]) if _program(values["REWARD"]) == str(USER_REWARD) else []
    exported["REWARD_FILES"] = os.pathsep.join(map(os.path.realpath, own))
    return {f"GRPO_{name}": value for name, value in exported.items()}


def _files(text: str) -> list[str]:
    """Return the names in a setting; a file whose name has blanks is one."""
    return [text] if os.path.isfile(text) else text.split()


def _program(reward: str) -> str:
    """Return what the trainer calls: a server, this project's file, or that which calls the user's files."""
    if reward.startswith(("http://", "https://")):
        return reward
    is_ours = not reward or (os.path.exists(reward) and os.path.samefile(reward, OUR_REWARD))
    return str(OUR_REWARD if is_ours else USER_REWARD)


def _make_tiny() -> int:
    """Make the tiny model and its problems, once and again after their code has changed; return an exit code."""
    bf16, folder = TINY_MODEL / "bf16", str(TINY_MODEL)
    commands = [
        ["scripts.make_tiny_model", "--out", str(TINY_MODEL / "mxfp4"), "--dequantized-out", str(bf16)],
        ["data.prepare", *("--source", "synthetic", "--train-count", "1024", "--eval-count", "256", "--out", folder)],
    ]
    for words in commands:
        quiet = subprocess.DEVNULL if words[0] == "data.prepare" else None
        if code := subprocess.run([sys.executable, "-P", "-m", *words], stdout=quiet, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    command.print_plainly()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the launcher has its own
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    sys.exit(guard.guard(lambda: main(lines, sys.argv[2:])))
