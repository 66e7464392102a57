"""The command that evaluates what a run has trained, by hand and as the run itself does."""

import shlex
from pathlib import Path

from grpo.launch.config import Config
from grpo.rollout.multi_turn.settings import has_environment
from grpo.run.measure import EXACT_MATCH, of_run


def evaluate_command(config: Config, adapter: Path | None) -> str | None:
    """Return the command for the engines' model with an adapter; None if `eval.evaluate` measures something else."""
    args = config.args
    if not args.eval_dataset or has_environment(args) or of_run(args) != EXACT_MATCH:
        return None
    options = {
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
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["python", "-m", "eval.evaluate", *words])
