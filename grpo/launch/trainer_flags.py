"""From what a command line asks for to the trainer's command line and the workers' variables."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.environments.settings import AGENT
from grpo.flags.boxes import ENGINE_SHARE
from grpo.flags.ours import DEFAULTS, EXPORTED
from grpo.flags.parser import make_parser
from grpo.flags.upstream import make_words, trainer_parser
from grpo.run.eval_metric import OUR_REWARD, USER_REWARD
from grpo.stack.checkout import CHECKOUT

_URL = ("http://", "https://")
Values = Mapping[str, Any]


def make_trainer_words(values: Values) -> list[str]:
    """Return the trainer's command line: the flags that were given, our defaults, and what follows from them."""
    known = {name: value for name, value in {**DEFAULTS, **values}.items() if value is not None}
    flags = _derive(known) | known | {"remote_rm_url": _choose_program(values.get("remote_rm_url") or "")}
    # OpenRLHF takes a folder and a key. The first follows from the run directory, the second is in the environment.
    flags |= {name: "1" if known.get(name) else None for name in ("use_tensorboard", "use_wandb")}
    return make_words(trainer_parser(), flags)


def _derive(known: Values) -> dict[str, Any]:
    """Return the flags that follow from others, unless they are given."""
    train = known.get("prompt_data") or str(CHECKOUT / "data" / "prepared" / "train.jsonl")
    environment, has_checkpointing = known.get("environment"), known["gradient_checkpointing"]
    derived = {
        "engine_model": known.get("pretrain"),
        "prompt_data": train,
        "eval_dataset": str(Path(train).with_name("eval.jsonl")),
        "old_log_probs": "engine" if known.get("pipeline") else "trainer",
        "vllm_gpu_memory_utilization": None if known.get("colocate_all_models") else ENGINE_SHARE,
        "offload": True if known.get("experts") == "bf16" and known.get("actor_shard", "zero3") == "zero3" else None,
        "eval_n_samples_per_prompt": 8 if known["eval_temperature"] else 1,
        # Each turn, and the answer after a cut thought, is a separate call; the engine has its prefix in the cache.
        "enable_prefix_caching": bool(environment or known.get("thinking_budget")),
        # Non-reentrant checkpointing fails with LoRA under ZeRO-3.
        "gradient_checkpointing_use_reentrant": has_checkpointing,
        # The actor is its own reference; OpenRLHF wants their sizes to be equal if GPUs are shared.
        "actor_num_nodes": 1,
        "ref_num_nodes": 1,
        "ref_num_gpus_per_node": known.get("actor_num_gpus_per_node"),
    }
    # An environment formats the chat itself.
    return derived | ({"agent_func_path": str(AGENT)} if environment else {"apply_chat_template": True})


def make_variables(values: Values) -> dict[str, str]:
    """Return the variables for every worker: judge, reward and environment. Paths become absolute."""
    defaults = {name: make_parser().get_default(name) for name in EXPORTED}
    exported = {name: value for name, value in (defaults | dict(values)).items() if name in EXPORTED}
    if environments := values.get("environment"):
        exported["environment"] = " ".join(_resolve(one) for one in split_files(environments))
    if library := values.get("library"):
        exported["library"] = _resolve(library)
    reward = values.get("remote_rm_url") or ""
    own = split_files(reward) if _choose_program(reward) == str(USER_REWARD) else []
    exported["reward_files"] = os.pathsep.join(map(os.path.realpath, own))
    return {f"GRPO_{name.upper()}": _as_text(value) for name, value in exported.items()}


def split_files(text: str) -> list[str]:
    """Return the names in a flag; a file whose name has blanks is one."""
    return [text] if os.path.isfile(text) else text.replace(",", " ").split()


def _resolve(path: str) -> str:
    return os.path.realpath(path) if os.path.exists(path) and path != "python" else path


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choose_program(reward: str) -> str:
    """Return what the trainer calls: a server, this project's file, or that which calls the user's files."""
    if reward.startswith(_URL):
        return reward
    is_ours = not reward or (os.path.exists(reward) and os.path.samefile(reward, OUR_REWARD))
    return str(OUR_REWARD if is_ours else USER_REWARD)
