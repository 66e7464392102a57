"""The checkpoints that actor and engines load: headers of all shards, shapes, tokenizer."""

from collections.abc import Iterator
from pathlib import Path

from grpo.environments.settings import has_environment
from grpo.launch.checks.adapter import adapter_as_model, check_adapter
from grpo.launch.config import Config
from grpo.model import architecture, model_files
from grpo.model.architecture import NO_SHARD, OF_ENGINE
from grpo.model.model_files import CheckpointError, Model
from grpo.model.released import RELEASED, absence, as_model, id_without_owner
from grpo.rollout import chat_template, stop_tokens
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.hub import is_id
from grpo.stack.problem import Problem, UserError


def check_model(config: Config) -> Iterator[Problem]:
    """Read config and shard headers of the actor's and the engines' model; every tensor must exist."""
    args = config.args
    models: dict[str, Model] = {}
    for variable, name in (("MODEL", args.pretrain), ("ENGINE_MODEL", args.engine_model)):
        if variable == "ENGINE_MODEL" and name == args.pretrain:
            models.update({variable: models["MODEL"]} if "MODEL" in models else {})
            continue
        if not Path(name).is_dir():
            what, remedy = absence(name)
            yield Problem(f"{variable} {name} {what}", remedy)
            continue
        if problem := adapter_as_model(Path(name)):
            yield problem
            continue
        try:
            model = model_files.read(Path(name))
            faults = architecture.check(model)
        except CheckpointError as error:
            remedy = error.problem.remedy or f"set {variable} to a complete gpt-oss checkpoint"
            yield Problem(f"{variable} {name}: {error.problem.what}", remedy)
            continue
        yield from (Problem(f"{variable} {name}: {fault.file} {fault.what}", fault.remedy) for fault in faults)
        if not faults:
            models[variable] = model
    if "MODEL" in models:
        yield from check_actor_model(config, models["MODEL"])
        yield from check_adapter(config, models["MODEL"])
    if "ENGINE_MODEL" in models:
        yield from check_engine_model(config, models["ENGINE_MODEL"], models.get("MODEL"))


def check_actor_model(config: Config, model: Model) -> Iterator[Problem]:
    """Check lengths and tokenizer."""
    args = config.args
    if args.actor_shard == OF_ENGINE and not model.is_mxfp4:
        yield Problem("ACTOR_SHARD=engine is for a model in MXFP4", f"set ACTOR_SHARD={NO_SHARD}")
    yield from _check_context(config, model)
    if not has_tokenizer(model.folder):
        yield Problem(f"{model.folder} has no tokenizer.json", "download the checkpoint with its tokenizer")
    formats_chats = args.apply_chat_template or has_environment(args)
    if formats_chats and not has_chat_template(model.folder):
        yield Problem(f"{model.folder} has no chat template", "add chat_template.jinja to the checkpoint")
    else:
        yield from _check_variables(config, model.folder)


def _check_context(config: Config, model: Model) -> Iterator[Problem]:
    context = model.config.get("max_position_embeddings")
    if context and config.max_model_len > context:
        yield Problem(
            f"PROMPT_MAX_LEN + GENERATE_MAX_LEN is {config.max_model_len:,} tokens, but the model's context is "
            f"{context:,}",
            f"lower their sum to {context:,}",
        )


def _check_variables(config: Config, folder: Path) -> Iterator[Problem]:
    """Refuse variables that the chat template would ignore."""
    args = config.args
    try:
        names = chat_template.variables(args.reasoning_effort, args.template_variables, args.template_date)
    except UserError:
        return  # check_flags explains it
    settings = {"reasoning_effort": "REASONING_EFFORT", chat_template.DATE: "TEMPLATE_DATE"}
    for name in chat_template.find_unread(folder, names):
        what = "the date" if name == chat_template.DATE else name
        yield Problem(
            f"the chat template of {folder} does not read {what}",
            f"remove it from {settings.get(name, 'TEMPLATE_VARIABLES')}",
        )


def can_format_chats(folder: Path) -> bool:
    """Return whether a folder has a tokenizer with a chat template, and no file that :func:`check_model` refuses."""
    try:
        is_sound = not model_files.code_faults(folder)
    except CheckpointError:
        return False
    return is_sound and has_tokenizer(folder) and has_chat_template(folder)


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has a tokenizer."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))


def has_chat_template(folder: Path) -> bool:
    """Return whether a tokenizer can format a chat."""
    config = folder / "tokenizer_config.json"
    inside = config.is_file() and "chat_template" in config.read_text(encoding="utf-8", errors="replace")
    return inside or (folder / "chat_template.jinja").is_file()


def check_engine_model(config: Config, model: Model, actor: Model | None) -> Iterator[Problem]:
    """Refuse formats and shapes that the engines cannot load, or that do not match the actor's model."""
    if is_cpu_stack() and model.is_mxfp4:
        yield Problem(
            "vLLM on CPU cannot load an MXFP4 checkpoint",
            "python -m scripts.dequantize_checkpoint --help, then set ENGINE_MODEL to the copy",
        )
    is_shared = config.args.actor_shard == OF_ENGINE and not is_cpu_stack()  # there it is a stand-in's
    if is_shared and config.args.engine_model != config.args.pretrain:
        yield Problem("ACTOR_SHARD=engine uses the engines' model, and ENGINE_MODEL is another", "unset ENGINE_MODEL")
    yield from _check_workers(config, model)
    if fault := stop_tokens.fault(model.folder):
        yield Problem(f"{model.folder}: {fault.file} {fault.what}", fault.remedy)
    for key in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size"):
        if actor and actor.config.get(key) != model.config.get(key):
            yield Problem(
                f"{key} is {model.config.get(key)} in ENGINE_MODEL and {actor.config.get(key)} in MODEL",
                "use the same model for both",
            )


def _check_workers(config: Config, model: Model) -> Iterator[Problem]:
    tensor_parallel = config.args.vllm_tensor_parallel_size
    heads, key_heads = model.config.get("num_attention_heads"), model.config.get("num_key_value_heads")
    for what, count in (("attention heads", heads), ("key/value heads", key_heads)):
        if count and count % tensor_parallel:
            yield Problem(f"ENGINE_TP {tensor_parallel} does not divide the {count} {what}", "use a divisor of both")


def check_released(config: Config) -> Iterator[Problem]:
    """Check released models by their shapes before they are downloaded, and refuse other models."""
    for variable, name in (("MODEL", config.args.pretrain), ("ENGINE_MODEL", config.args.engine_model)):
        is_wrong = (is_id(name) and name not in RELEASED) or id_without_owner(name)
        if is_wrong and (variable == "MODEL" or name != config.args.pretrain):
            what, remedy = absence(name)
            yield Problem(f"{variable} {name} {what}", remedy)
    if actor := as_model(config.args.pretrain):
        yield from _check_context(config, actor)
    yield from check_adapter(config, actor)
    if engine := as_model(config.args.engine_model):
        yield from _check_workers(config, engine)
