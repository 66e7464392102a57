"""What actor and engines load: the model, the adapter, and the tokenizer with the thinking budget in its tokens."""

import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import Adapter
from grpo.environments.settings import has_environment
from grpo.launch.config import Config
from grpo.model import architecture, model_files
from grpo.model.architecture import NO_SHARD, OF_ENGINE, TARGETS, Architecture
from grpo.model.model_files import CheckpointError, Model
from grpo.model.released import RELEASED, absence, as_model, id_without_owner
from grpo.rollout import chat_template
from grpo.rollout.thinking import Delimiter, delimiter
from grpo.run.run_files import RunFiles
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.hub import is_id
from grpo.stack.json_files import read_bytes
from grpo.stack.problem import Problem, UserError
from grpo.train.lengths import parse_stages


def check_model(config: Config, is_missed: bool = True) -> Iterator[Problem]:
    """Check both models and the adapter. With `is_missed`, a model that is not here is a problem."""
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
            yield Problem(f"{given} does not divide the {engine.config[key]} {what}", "use a divisor of both")
    if actor and actor.folder.is_dir():
        yield from _check_actor(args, actor)
    if engine and engine.folder.is_dir():
        yield from _check_engine(args, engine, actor)


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


def _check_actor(args: Namespace, model: Model) -> Iterator[Problem]:
    """Check the tokenizer, and refuse variables that the chat template would ignore."""
    folder = model.folder
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
    flags = {"reasoning_effort": "--reasoning_effort", chat_template.DATE: "--template_date"}
    for name in chat_template.find_unread(folder, names):
        flag = flags.get(name, "--template_variables")
        yield Problem(f"{flag}: the chat template of {folder} does not read {name}", f"remove it from {flag}")


def _check_engine(args: Namespace, model: Model, actor: Model | None) -> Iterator[Problem]:
    """Refuse formats and shapes that the engines cannot load, or that do not match the actor's model."""
    if is_cpu_stack() and model.is_mxfp4:
        remedy = (
            "python -m scripts.export_model --model MODEL --experts bf16 --out COPY, then set --engine_model to COPY"
        )
        yield Problem("--engine_model: vLLM on CPU cannot load an MXFP4 checkpoint", remedy)
    is_shared = args.actor_shard == OF_ENGINE and not is_cpu_stack()  # there it is a stand-in's
    if is_shared and args.engine_model != args.pretrain:
        what = "--actor_shard engine uses the engines' model, and --engine_model is another"
        yield Problem(what, "unset --engine_model")
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
    inside = config.is_file() and b"chat_template" in read_bytes(config)
    return inside or (folder / "chat_template.jinja").is_file()


def check_adapter(config: Config, model: Model | None) -> Iterator[Problem]:
    """Compare the adapter with the flags and the model, or what is known of it, and look at its values."""
    if not config.args.adapter:
        return
    try:
        copy = RunFiles(Path(config.args.run_dir)).start  # once the run has it
        adapter = adapter_files.read(copy if copy.is_dir() else Path(config.args.adapter))
    except CheckpointError as error:
        yield Problem(f"--adapter: {error.problem.what}", error.problem.remedy)
        return
    place = f"--adapter {adapter.folder}"
    if faults := adapter_files.check_against(adapter, model) if model else []:
        yield from (Problem(f"{place}: {fault.file} {fault.what}", fault.remedy) for fault in faults)
        return
    if adapter.config.get("use_rslora"):
        alpha = f"{adapter.alpha * math.sqrt(adapter.rank):g}"
        what = f"{place} has use_rslora: its scale is lora_alpha / sqrt(r), and a run's lora_alpha / r"
        yield Problem(what, f"in a copy, set use_rslora to false and lora_alpha to {alpha}")
    elif differing := _compare(config.args, adapter, Architecture.from_config(model.config) if model else None):
        listed = ", ".join(f"{name} {has} and not {wanted}" for name, (has, wanted) in differing.items())
        remedy = " ".join(f"{name} {has}" for name, (has, _) in differing.items())
        yield Problem(f"{place} has {listed}", f"set {remedy}")
    if broken := adapter_files.non_finite(adapter):
        yield Problem(f"{place} has NaN or infinity in {broken[0]}", "use that of an earlier step")


def _compare(args: Namespace, adapter: Adapter, base: Architecture | None) -> dict[str, tuple[str, str]]:
    """Return the flags that differ: the adapter's value and the run's."""
    targets = " ".join(name for name in TARGETS if name in args.target_modules)
    values = {
        "--lora_rank": (f"{adapter.rank}", f"{args.lora_rank}"),
        "--lora_alpha": (f"{adapter.alpha:g}", f"{args.lora_alpha}"),
        "--target_modules": (" ".join(adapter.projections), targets),
    }
    if base and (rank := adapter.find_expert_rank(base)):
        values["--expert_rank"] = (f"{rank}", f"{base.find_expert_rank(args)}")
    return {name: (has, wanted) for name, (has, wanted) in values.items() if has != wanted}


def check_thinking(config: Config) -> Iterator[Problem]:
    """Check the budgets against the response length, and the delimiter with the actor's tokenizer.

    Without a tokenizer, the delimiter counts as one token, which it has at least.
    """
    args = config.args
    if args.thinking_budget is None or args.answer_budget is None:
        return  # the flags' check reports what is missing
    try:
        made = _read_delimiter(args)
    except UserError as error:
        yield Problem(f"--thinking_delimiter: {error.problem.what}", error.problem.remedy)
        return
    size = len(made.tokens) if made else 1
    needed = args.thinking_budget + size + args.answer_budget
    if needed > args.generate_max_len:
        what = f"--thinking_budget {args.thinking_budget} + delimiter {size} + --answer_budget {args.answer_budget}"
        remedy = f"set --generate_max_len to at least {needed}, or lower a budget"
        yield Problem(f"{what} = {needed} tokens, but --generate_max_len is {args.generate_max_len}", remedy)
        return
    try:
        first = parse_stages(args)[0].length
    except UserError:
        return  # the flags' check explains it
    if first <= size + args.answer_budget and args.thinking_budget:
        what = f"--length_schedule begins with {first} tokens, which leaves none for the thinking"
        yield Problem(what, f"begin with more than {size + args.answer_budget}, or lower --answer_budget")


def _read_delimiter(args: Namespace) -> Delimiter | None:
    """Return the thinking delimiter; None without a tokenizer. Raises UserError if that cannot encode it."""
    file = Path(args.pretrain) / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer  # imports in a fifth of a second

    try:
        tokenizer = Tokenizer.from_buffer(read_bytes(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise UserError(f"{file} cannot be read ({error})", "download or copy the checkpoint again") from None
    return delimiter(args.thinking_delimiter, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
