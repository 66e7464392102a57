"""CPU seconds and memory of `./train_grpo.sh --tiny` beside TRL's GRPOTrainer on the same work.

    python -m benchmarks.beside_trl [--rounds 2] [--steps 3] [--json FILE] [-- OUR FLAGS]

Both train a LoRA adapter of the tiny gpt-oss on the same problems from the same seeds, with as many rollouts, tokens
and optimizer steps, with the grade of the answer as reward. Ours goes without what TRL does not have or is not asked
for: judge, evaluations, checkpoints, and the comparison of engines and trainer (`--parity_limit 0`). TRL samples and
trains in one process, in float32 and without gradient checkpointing, which costs it least on a CPU. It has an
environment of its own, `.cache/beside-trl`, which the first call makes (7 GB). Rounds take turns, each with a new seed.

Seconds are user and system time of all processes, read ten times a second; what a process uses after its last reading
is lost. Memory is the largest sum of PSS, read once a second.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

CHECKOUT = Path(__file__).resolve().parents[1]
TINY, ENVIRONMENT = CHECKOUT / ".cache" / "tiny-model", CHECKOUT / ".cache" / "beside-trl"
PINS = ("trl==1.16.0", "transformers==5.24.0", "peft==0.21.2", "accelerate==1.15.0", "datasets==5.2.0", "torch==2.10.0")
OURS = (
    *("--no-judge", "--no-eval_at_start", "--eval_steps", "-1", "--save_steps", "-1"),
    *("--restarts", "0", "--parity_limit", "0"),
)
GROUP, MICRO_BATCH, OPTIMIZER_BATCH, UPDATES = 8, 16, 64, 2  # of a step, as `--tiny` has them
_SUBREAPER = 36  # of prctl(2): orphans become children of this process


class Meter:
    """Measures a command with all its descendants. `peak` is in bytes."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._used: dict[psutil.Process, float] = {}  # seconds of each process, also of those that have ended
        self._times: list[float] = []  # of the readings
        self._sums: list[float] = []  # seconds until then
        self.peak = 0

    def run(self, command: list[str], environment: dict[str, str]) -> None:
        """Raise CalledProcessError if the command fails."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, 0):  # orphans of the run before: their seconds are not this one's
                pass
        process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL)
        looks = 0
        while process.poll() is None:
            self._look(with_memory=looks % 10 == 0)
            looks += 1
            time.sleep(0.1)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)

    def at(self, moment: float) -> float:
        """Return the seconds that were used until a time."""
        return self._sums[min(bisect_left(self._times, moment), len(self._times) - 1)]

    def _look(self, with_memory: bool) -> None:
        memory = 0
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                times = process.cpu_times()
                self._used[process] = times.user + times.system
                memory += process.memory_full_info().pss if with_memory else 0
        self._times.append(time.time())
        self._sums.append(sum(self._used.values()))
        self.peak = max(self.peak, memory)


def measure_ours(steps: int, seed: int, flags: list[str]) -> dict[str, Any]:
    """Make a tiny run; return what it used."""
    meter, folder = Meter(), Path(tempfile.mkdtemp(prefix="beside-trl-")) / "run"
    words = ["--tiny", *OURS, "--steps", str(steps), "--seed", str(seed), "--run-dir", str(folder), *flags]
    meter.run(["./train_grpo.sh", *words], dict(os.environ))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    ends = [row["time"] for row in rows]
    tokens = sum(row["response_length"] for row in rows) * UPDATES * OPTIMIZER_BATCH
    return _describe(meter, [ends[0] - rows[0]["seconds"]["total"], *ends], [row["reward"] for row in rows], tokens)


def measure_trl(steps: int, seed: int) -> dict[str, Any]:
    """Let TRL do the same."""
    if not (ENVIRONMENT / "bin" / "python").exists():
        uv = str(CHECKOUT / ".venv" / "bin" / "uv")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(ENVIRONMENT)], check=True)
        subprocess.run([uv, "pip", "install", "--python", str(ENVIRONMENT), *PINS], check=True)
    meter, out = Meter(), Path(tempfile.mkdtemp(prefix="beside-trl-"))
    own = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [str(ENVIRONMENT / "bin" / "python"), "-P", __file__, "--as-trl", str(out), "--steps", str(steps)]
    meter.run([*command, "--seed", str(seed)], environment | {"HF_HUB_OFFLINE": "1"})
    told = json.loads((out / "told.json").read_text(encoding="utf-8"))
    return _describe(meter, told["times"], told["rewards"], told["tokens"])


def _describe(meter: Meter, times: list[float], rewards: list[float], tokens: float) -> dict[str, Any]:
    """Return the numbers of a run, given when its first step began and when each step ended."""
    start, last, end = (meter.at(moment) for moment in (times[0], times[-1], time.time()))
    seconds = {"start_s": start, "step_s": (last - start) / (len(times) - 1), "all_s": end}
    return {**seconds, "peak_gb": meter.peak / 1e9, "rewards": rewards, "tokens": tokens}


def train_with_trl(steps: int, seed: int, out: Path) -> None:
    """Run TRL in this process, which its environment has started."""
    import re

    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    rewards: list[float] = []
    tokens: list[int] = []
    times: list[float] = []

    def grade(completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        texts = trainer.processing_class.batch_decode(completion_ids)
        found = [re.findall(r"<\|channel\|>final.*?\\boxed\{(.*?)\}", text, re.DOTALL)[-1:] for text in texts]
        grades = [float(one == [gold]) for one, gold in zip(found, answer, strict=True)]
        rewards.append(sum(grades) / len(grades))
        tokens.append(sum(map(len, completion_ids)))
        return grades

    class Times(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % UPDATES == 0:
                times.append(time.time())

    rows = [json.loads(line) for line in (TINY / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    problems = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "answer": json.loads(row["label"])["answer"]}
        for row in rows
    ]
    accumulation = OPTIMIZER_BATCH // MICRO_BATCH
    config = GRPOConfig(
        output_dir=str(out), max_steps=steps * UPDATES, seed=seed, learning_rate=2e-3, weight_decay=0.0,
        lr_scheduler_type="constant_with_warmup", warmup_steps=1, per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=accumulation, steps_per_generation=accumulation * UPDATES, num_generations=GROUP,
        max_completion_length=48, temperature=1.0, beta=0.0, scale_rewards="none", loss_type="dapo",
        gradient_checkpointing=False, bf16=False, use_cpu=True, report_to="none", save_strategy="no",
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    trainer = GRPOTrainer(
        str(TINY / "bf16"), grade, config, Dataset.from_list(problems), peft_config=adapter, callbacks=[Times()]
    )
    trainer.train()
    told = {"times": [*times, time.time()], "rewards": rewards, "tokens": sum(tokens)}
    (out / "told.json").write_text(json.dumps(told), encoding="utf-8")


def main() -> None:
    """Measure, print a line for each run, and write all numbers to the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42, help="of the first round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-trl", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="of our run")
    asked = parser.parse_args()
    if asked.as_trl:
        train_with_trl(asked.steps, asked.seed, asked.as_trl)
        return
    results: list[dict[str, Any]] = []
    for seed in range(asked.seed, asked.seed + asked.rounds):
        # Ours first: it makes the tiny model that both train.
        results.append({"who": "ours", "seed": seed} | measure_ours(asked.steps, seed, asked.flags))
        results.append({"who": "TRL", "seed": seed} | measure_trl(asked.steps, seed))
    for one in results:
        seconds = "start {start_s:.1f}, a step {step_s:.1f}, all {all_s:.1f} CPU s; {peak_gb:.2f} GB".format(**one)
        reward = f"reward {one['rewards'][0]:.3f} to {one['rewards'][-1]:.3f}"
        print(f"{one['who']:<4}  seed {one['seed']}: {seconds}; {one['tokens']:,.0f} tokens, {reward}")
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
