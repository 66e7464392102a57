"""The checkpoints that actor and engines load: headers of all shards, shapes, tokenizer."""

from collections.abc import Iterator
from pathlib import Path

from grpo.checkpoint import adapter_files
from grpo.environments.settings import has_environment
from grpo.launch.checks.adapter import check_adapter
from grpo.launch.config import Config
from grpo.model import architecture, model_files
from grpo.model.architecture import NO_SHARD, OF_ENGINE
from grpo.model.model_files import CheckpointError, Model
from grpo.model.released import RELEASED, absence, as_model, id_without_owner
from grpo.rollout import chat_template
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.hub import is_id
from grpo.stack.problem import Problem, UserError


def check_model(config: Config, is_missed: bool = True) -> Iterator[Problem]:
    """Read config and shard headers of the actor's and the engines' model. A released one that is not here has shapes.

    Args:
        is_missed: whether a model that is not here is a problem.
    """
    args = config.args
    models: dict[str, Model | None] = {}
    for variable, name in (("MODEL", args.pretrain), ("--engine_model", args.engine_model)):
        if variable == "--engine_model" and name == args.pretrain:
            models[variable] = models["MODEL"]
            continue
        models[variable] = as_model(name)
        if Path(name).is_dir():
            models[variable], problems = _read(Path(name))
            yield from (Problem(f"{variable} {name}: {problem.what}", problem.remedy) for problem in problems)
        elif is_missed or id_without_owner(name) or (is_id(name) and name not in RELEASED):
            what, remedy = absence(name)
            yield Problem(f"{variable} {name} {what}", remedy)
    actor, engine = models["MODEL"], models["--engine_model"]
    yield from check_adapter(config, actor)
    context = (actor.config.get("max_position_embeddings") if actor else None) or config.max_model_len
    if config.max_model_len > context:
        what = f"--prompt_max_len + --generate_max_len is {config.max_model_len:,} tokens, but the model's context is"
        yield Problem(f"{what} {context:,}", f"lower their sum to {context:,}")
    for what, key in (("attention heads", "num_attention_heads"), ("key/value heads", "num_key_value_heads")):
        if engine and engine.config[key] % args.vllm_tensor_parallel_size:
            given = f"--vllm_tensor_parallel_size {args.vllm_tensor_parallel_size}"
            what = f"{given} does not divide the {engine.config[key]} {what}"
            yield Problem(what, "use a divisor of both")
    if actor and actor.folder.is_dir():
        yield from _check_actor(config, actor)
    if engine and engine.folder.is_dir():
        yield from _check_engine(config, engine, actor)


def _read(folder: Path) -> tuple[Model | None, list[Problem]]:
    """Return the model in a folder, or what is wrong with it; every tensor must exist."""
    if (folder / adapter_files.CONFIG).is_file() and not (folder / "config.json").exists():
        return None, [Problem("this is an adapter", f"set --adapter {folder}, and MODEL to its base model")]
    try:
        model = model_files.read(folder)
        faults = architecture.check(model)
    except CheckpointError as error:
        return None, [Problem(error.problem.what, error.problem.remedy or "name a complete gpt-oss checkpoint")]
    return None if faults else model, [Problem(f"{fault.file} {fault.what}", fault.remedy) for fault in faults]


def _check_actor(config: Config, model: Model) -> Iterator[Problem]:
    """Check the tokenizer, and refuse variables that the chat template would ignore."""
    args, folder = config.args, model.folder
    if args.actor_shard == OF_ENGINE and not model.is_mxfp4:
        yield Problem("--actor_shard engine is for a model in MXFP4", f"set --actor_shard {NO_SHARD}")
    if not (folder / "tokenizer.json").is_file():
        yield Problem(f"MODEL {folder} has no tokenizer.json", "download the checkpoint with its tokenizer")
    if not has_chat_template(folder):
        if args.apply_chat_template or has_environment(args):
            yield Problem(f"MODEL {folder} has no chat template", "add chat_template.jinja to the checkpoint")
        return
    try:
        names = chat_template.variables(args.reasoning_effort, args.template_variables, args.template_date)
    except UserError as error:
        yield error.problem
        return
    settings = {"reasoning_effort": "--reasoning_effort", chat_template.DATE: "--template_date"}
    for name in chat_template.find_unread(folder, names):
        setting = settings.get(name, "--template_variables")
        yield Problem(f"{setting}: the chat template of {folder} does not read {name}", f"remove it from {setting}")


def _check_engine(config: Config, model: Model, actor: Model | None) -> Iterator[Problem]:
    """Refuse formats and shapes that the engines cannot load, or that do not match the actor's model."""
    if is_cpu_stack() and model.is_mxfp4:
        yield Problem(
            "--engine_model: vLLM on CPU cannot load an MXFP4 checkpoint",
            "python -m scripts.export_model --model MODEL --experts bf16 --out COPY, then set --engine_model to COPY",
        )
    is_shared = config.args.actor_shard == OF_ENGINE and not is_cpu_stack()  # there it is a stand-in's
    if is_shared and config.args.engine_model != config.args.pretrain:
        yield Problem(
            "--actor_shard engine uses the engines' model, and --engine_model is another", "unset --engine_model"
        )
    if fault := chat_template.find_stop_fault(model.folder):
        yield Problem(f"--engine_model {model.folder}: {fault.file} {fault.what}", fault.remedy)
    for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if actor and actor.config[key] != model.config[key]:
            what = f"{key} is {model.config[key]} in --engine_model and {actor.config[key]} in MODEL"
            yield Problem(what, "use the same model for both")


def can_format_chats(folder: Path) -> bool:
    """Return whether a folder has a tokenizer with a chat template, and no file that :func:`check_model` refuses."""
    try:
        is_sound = not model_files.code_faults(folder)
    except CheckpointError:
        return False
    return is_sound and (folder / "tokenizer.json").is_file() and has_chat_template(folder)


def has_chat_template(folder: Path) -> bool:
    """Return whether a tokenizer can format a chat."""
    config = folder / "tokenizer_config.json"
    inside = config.is_file() and "chat_template" in config.read_text(encoding="utf-8", errors="replace")
    return inside or (folder / "chat_template.jinja").is_file()
