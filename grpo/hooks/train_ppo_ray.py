"""Hooks of openrlhf/cli/train_ppo_ray.py: the driver's command line, and how it starts engines and actor.

The launcher imports this module without torch to read the flags. Hooks that need torch import it themselves.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from grpo.hooks import flag_aliases
from grpo.launch import flags
from grpo.launch.supervise import driver_error
from grpo.model import model_files
from grpo.model.architecture import EXPERTS_TARGET, Architecture
from grpo.rollout import chat_template, thinking
from grpo.stack import cluster, zygote
from grpo.stack.hub import downloaded_folder
from grpo.stack.upstream import Arguments, EngineActor
from reward import judge_actor

add_flags = flags.add_flags
rename_flags = flag_aliases.rename_flags  # of OpenRLHF 0.11.2, as the next
in_sections = flag_aliases.in_sections
hand_on_thinking_budget = thinking.pass_to_engines
hand_on_template_variables = chat_template.pass_to_engines  # the engines' environments render prompts
runtime_env = cluster.runtime_env
engines_ready = cluster.engines_ready

zygote.keep_ids_apart()  # before OpenRLHF's imports, which make actor classes

_judge: list[Any] = []  # it lives as long as this handle


def validate(args: argparse.Namespace) -> None:
    """Refuse flags that cannot work together, before anything starts. From here on, the launcher learns of errors."""
    flags.validate(args)
    zygote.start()  # all is imported, and the only threads are those of OpenBLAS and jemalloc, which expect forks
    driver_error.install()


def settle_nodes() -> None:
    """Start the judge on this node. Ray is connected."""
    cluster.note_nodes()
    _judge.append(judge_actor.start(cluster.make_home_options()))


def engine_model(args: Arguments) -> str:
    """Return the checkpoint that the engines load: their own, or the actor's."""
    return args.engine_model or args.pretrain


def adapter_config(args: Arguments) -> dict[str, Any]:
    """Return what the engines' workers need to know about the adapter before they get it."""
    from grpo.lora import adapter

    if EXPERTS_TARGET not in args.target_modules:
        return adapter.engine_config(args)
    base = Architecture.from_config(model_files.read_json(downloaded_folder(args.pretrain) / "config.json"))
    return adapter.engine_config(args, base.find_expert_rank(args))


def rank() -> Any:
    """Return the Ray actor of a rank, which takes the place of ``PolicyModelActor``."""
    import ray

    from grpo.train.worker import PolicyWorker  # imports DeepSpeed

    return ray.remote(num_gpus=1)(PolicyWorker)


def has_reference_model(_: Arguments) -> bool:
    """Return False: the reference is the actor as it started, see :mod:`grpo.train.reference`."""
    return False


def engines_before_actor(args: Arguments, engines: Sequence[EngineActor] | None) -> None:
    """Wait for the engines if the actor, which has not loaded yet, shares their GPUs.

    A starting engine measures the memory of its GPU, and would count what the actor allocates as its own.
    """
    if args.colocate_all_models:
        import ray

        ray.get(engines_ready(engines))
