"""A run whose engines and ranks wait for stated times instead of computing.

The loop is OpenRLHF's own, with our patches: its controller, sample generator, experience maker, and Ray. Only the
bodies of the engines' and the ranks' methods are replaced.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from grpo.launch.config import trainer_parser
from grpo.rollout import answering
from grpo.stack.json_files import read_rows

PROMPTS, SAMPLES, RANKS = 4, 4, 2
_TOKENS = (9, 10, 11, 12)  # of a response
_PROMPT = (5, 6)


@dataclass(frozen=True)
class Latencies:
    """Seconds of each part of a step.

    Attributes:
        sampling: of the engines, for a batch.
        judge: of the judge, after a response.
        training: of the ranks, for a batch.
        sync: of sending the adapter.
    """

    sampling: float
    judge: float
    training: float
    sync: float

    def in_turn(self) -> float:
        """Return the seconds of a step whose parts follow one another."""
        return self.sampling + self.judge + self.training + self.sync

    def ahead(self) -> float:
        """Return the seconds of a step that samples the next batch while this one is judged and trained on.

        The engines sample a batch between two syncs, and the ranks train on one. From the beginning of its sampling to
        the end of its sync, a batch takes two steps.
        """
        two = self.sampling + self.judge + self.training + self.sync
        return max(self.sampling + self.sync, self.training + self.sync, two / 2)


class Engine:
    """In place of ``LLMRayActor``."""

    def __init__(self, latencies: Latencies) -> None:
        self._latencies, self._running = latencies, 0

    async def get_num_unfinished_requests(self) -> int:
        return self._running

    async def sampled(self) -> list[int | None]:
        return answering.sampled()

    async def generate_responses(
        self, prompt: str, label: str, sampling_params: Any, num_samples: int, **_: Any
    ) -> list[dict[str, Any]]:
        """Return the responses to a prompt, half of them with a reward of 1."""
        self._running += num_samples
        await asyncio.sleep(self._latencies.sampling)
        self._running -= num_samples
        with answering.waiting(sampling_params.seed):
            await asyncio.sleep(self._latencies.judge)
        length = len(_PROMPT)
        return [
            {
                "prompt": prompt,
                "label": label,
                "reward": number % 2,
                "scores": number % 2,
                "extra_logs": {},
                "observation_tokens": [*_PROMPT, *_TOKENS],
                "action_ranges": [(length, length + len(_TOKENS))],
                "rollout_log_probs": [0.0] * length + [-1.0] * len(_TOKENS),
            }
            for number in range(num_samples)
        ]


class Rank:
    """In place of ``PolicyModelActor``."""

    def __init__(self, latencies: Latencies) -> None:
        self._latencies, self._steps = latencies, 0

    def execute_batch(self, method_name: str, all_data: Any, start_idx: int, end_idx: int) -> None:
        """Take the rank's part of a batch."""

    def fit(self, **_: Any) -> dict[str, Any]:
        """Return what a rank notes of an update of one optimizer step."""
        time.sleep(self._latencies.training)
        self._steps += 1
        return {"micro_batches": [], "grad_norms": [0.1], "metric_errors": 0.0, "optimizer_step": float(self._steps)}

    def broadcast_to_vllm(self) -> None:
        """Send nothing."""
        time.sleep(self._latencies.sync)


def rows_of(folder: Path, latencies: Latencies, steps: int, is_ahead: bool) -> list[dict[str, Any]]:
    """Make a run in a folder; return its lines of metrics.jsonl. Ray must have been started."""
    from openrlhf.trainer.ppo_trainer import PPOTrainer
    from openrlhf.trainer.ray.launcher import RayActorGroup
    from openrlhf.utils import get_strategy

    folder.mkdir()
    args = _arguments(folder, steps, is_ahead)
    group = object.__new__(RayActorGroup)  # its methods, without its start of real ranks
    group._actor_handlers = [_start(Rank, latencies) for _ in range(RANKS)]
    group.duplicate_actors = 1
    controller = PPOTrainer.__ray_metadata__.modified_class
    lengths = {"prompt_max_len": args.prompt_max_len, "max_new_tokens": args.generate_max_len}
    engines = [_start(Engine, latencies)]
    controller(args.pretrain, get_strategy(args), group, None, None, None, engines, **lengths).fit()
    return read_rows(folder / "metrics.jsonl")


def _start(kind: type, latencies: Latencies) -> Any:
    actor: Any = ray.remote(num_cpus=0)(kind)
    return actor.remote(latencies)


def _arguments(folder: Path, steps: int, is_ahead: bool) -> Any:
    from scripts.tiny_model.tokenizer import write_tokenizer  # imports PyTorch, which the actors do not need

    model, data = folder / "tokenizer", folder / "train.jsonl"
    model.mkdir()
    write_tokenizer(model)
    (model / "config.json").write_text('{"model_type": "gpt_oss"}')
    problems = [{"prompt": f"{number}", "label": "1"} for number in range(PROMPTS * (steps + 1))]
    data.write_text("\n".join(map(json.dumps, problems)))
    batch = str(PROMPTS * SAMPLES)
    words = [
        *("--pretrain", model, "--prompt_data", data, "--input_key", "prompt", "--label_key", "label"),
        *("--run_dir", folder, "--ckpt_path", folder / "checkpoints", "--save_steps", -1, "--eval_steps", -1),
        *("--experts", "packed", "--actor_shard", "zero3", "--lora_rank", 8, "--parity_limit", 0),
        *("--loss_aggregation", "token_mean", "--old_log_probs", "engine", "--advantage_estimator", "dr_grpo"),
        *("--rollout_batch_size", PROMPTS, "--n_samples_per_prompt", SAMPLES, "--train_batch_size", batch),
        *("--micro_rollout_batch_size", batch, "--micro_train_batch_size", batch, "--init_kl_coef", 0),
        *("--prompt_max_len", 16, "--generate_max_len", 16, "--max_steps", steps, "--actor_num_gpus_per_node", RANKS),
        *("--remote_rm_url", "judge.py", *(["--pipeline"] if is_ahead else [])),
    ]
    args = trainer_parser().parse_args([str(word) for word in words])
    args.micro_rollout_batch_size = PROMPTS * SAMPLES // RANKS
    args.remote_rm_url = [args.remote_rm_url]  # as OpenRLHF's main block makes it
    return args
