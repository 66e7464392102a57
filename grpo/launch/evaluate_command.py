"""How to evaluate what a run has trained, by hand and as the run itself does."""

import shlex
from pathlib import Path
from typing import Any

from grpo.environments.settings import has_environment, variables
from grpo.launch.checks.reward import is_users
from grpo.launch.config import Config
from grpo.run.eval_metric import EXACT_MATCH, choose_eval_metric
from grpo.stack.checkout import CHECKOUT
from reward import user_files


def describe(config: Config, adapter: Path | None) -> str:
    """Return a line for the user: the command that evaluates an adapter, or why there is no command."""
    args, given = config.args, variables() if has_environment(config.args) else {}
    if not args.eval_dataset:
        why = "there are no held-out problems; set EVAL_DATA"
    elif choose_eval_metric(args) != EXACT_MATCH and not is_users(config):
        why = "eval.evaluate does not ask a server for rewards; the run's held-out scores are in eval.jsonl"
    elif len(given.get("ENVIRONMENT", "").split()) > 1 and not Path(given["ENVIRONMENT"]).is_file():
        why = "eval.evaluate plays one environment, and this run has several; see docs/evaluation.md"
    else:
        return f"evaluate     {build_shell_command('eval.evaluate', *_options(config, adapter, given))}"
    return f"evaluate     no command: {why}"


def _options(config: Config, adapter: Path | None, given: dict[str, str]) -> list[str]:
    args = config.args
    options: dict[str, Any] = {
        "model": args.engine_model,
        "adapter": adapter,
        "data": args.eval_dataset,
        "max-tokens": args.generate_max_len,
        "temperature": f"{args.eval_temperature:g}",
        "tensor-parallel": args.vllm_tensor_parallel_size,
        "reasoning-effort": args.reasoning_effort,
        "template-variables": args.template_variables,
        "date": args.template_date,
        "thinking-budget": args.thinking_budget,
        "answer-budget": args.answer_budget,
        "out": f"evals/{Path(args.run_dir).name}",
    }
    if args.thinking_budget is not None:
        options["thinking-delimiter"] = args.thinking_delimiter
    if given:
        options |= {
            "environment": given["ENVIRONMENT"],
            "library": given.get("LIBRARY"),
            "turns": given["TURN_LIMIT"],
            "seconds": given["ROLLOUT_SECONDS"],
            "tool-seconds": given["TOOL_SECONDS"],
            "score-seconds": given["SCORE_SECONDS"],
            "max-model-len": args.max_len or args.prompt_max_len + args.generate_max_len,
        }
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    if is_users(config) and not given:
        rewards = user_files.from_environment()
        words += ["--reward", *(str(one.path) for one in rewards)]
        if any(one.weight != 1 for one in rewards):
            words += ["--reward-weights", *(str(one.weight) for one in rewards)]
    return words


def build_shell_command(module: str, *words: str) -> str:
    """Return the command that starts a module in a new shell in this folder."""
    here = Path.cwd() == CHECKOUT
    script = "scripts/env.sh" if here else str(CHECKOUT / "scripts" / "env.sh")
    python = ["python", "-m"] if here else ["python", "-P", "-m"]
    return f"source {shlex.quote(script)} && {shlex.join([*python, module, *words])}"
