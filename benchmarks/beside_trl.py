"""CPU seconds and memory of `./train_grpo.sh --tiny` beside TRL's GRPOTrainer on the same work.

    python -m benchmarks.beside_trl [--rounds 2] [--steps 3] [--only ours|trl] [--json FILE] [-- OUR FLAGS]

Both train a LoRA adapter of the tiny gpt-oss on the same problems from the same seeds, with as many rollouts, tokens
and optimizer steps, with the grade of the answer as reward, without a judge, evaluations and checkpoints. TRL samples
and trains in one process, in float32 and without gradient checkpointing, which costs it least on a CPU. It has an
environment of its own, `.cache/beside-trl`, which the first call makes (7 GB). Rounds take turns, each with a new seed.

Seconds are user and system time of all processes, from /proc ten times a second; what a process uses after its last
reading is lost. Memory is the largest sum of PSS, read once a second.
"""

import argparse
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
TINY, ENVIRONMENT = CHECKOUT / ".cache" / "tiny-model", CHECKOUT / ".cache" / "beside-trl"
PINS = ("trl==1.16.0", "transformers==5.24.0", "peft==0.21.2", "accelerate==1.15.0", "datasets==5.2.0", "torch==2.10.0")
OURS = ("--no-judge", "--no-eval_at_start", "--eval_steps", "-1", "--save_steps", "-1", "--restarts", "0")
GROUP, MICRO_BATCH, OPTIMIZER_BATCH, UPDATES = 8, 16, 64, 2  # of a step, as `--tiny` has them
_KINDS = {  # of our processes, by their titles or command lines: the first that fits
    "ray::PolicyWorker": "ranks", "VLLM::": "engine core", "ray::LLMRayActor": "engine actor",
    "train_ppo_ray": "driver", "ray::": "other workers", "default_worker": "other workers", "/ray/": "Ray",
    "ray_head": "Ray", "grpo.": "launcher", "--as-trl": "TRL",
}  # fmt: skip
_SUBREAPER = 36  # of prctl(2): orphans become children of this process
_TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """Measures a command with all its descendants. `peak` is in bytes, by kind of process."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._used: dict[tuple[int, str], tuple[str, float]] = {}  # by process: its kind, and its seconds
        self._times: list[float] = []  # of the readings
        self._sums: list[dict[str, float]] = []  # seconds by kind of process until then
        self.peak: dict[str, int] = {}

    def run(self, command: list[str], environment: dict[str, str]) -> None:
        """Raise CalledProcessError if the command fails."""
        with contextlib.suppress(ChildProcessError):
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

    def at(self, moment: float) -> dict[str, float]:
        """Return the seconds by kind of process that were used until a time."""
        return self._sums[min(bisect_left(self._times, moment), len(self._times) - 1)]

    def _look(self, with_memory: bool) -> None:
        children: dict[int, list[int]] = defaultdict(list)
        used: dict[int, tuple[str, float]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            children[int(fields[1])].append(int(folder.name))
            used[int(folder.name)] = fields[19], (int(fields[11]) + int(fields[12])) / _TICKS
        found = list(children[os.getpid()])
        for pid in found:
            found += children[pid]
        for pid in found:
            start, seconds = used[pid]
            kind = _find_kind(pid) or self._used.get((pid, start), ("launcher", 0.0))[0]
            self._used[pid, start] = kind, seconds
        self._times.append(time.time())
        self._sums.append(_sum(self._used.values()))
        if with_memory:
            sizes = _sum((self._used[pid, used[pid][0]][0], _read_pss(pid)) for pid in found)
            self.peak = max(self.peak, sizes, key=lambda by_kind: sum(by_kind.values()))


def _sum(pairs: Any) -> dict[str, Any]:
    sums: dict[str, Any] = defaultdict(int)
    for name, value in pairs:
        sums[name] += value
    return dict(sums)


def _find_kind(pid: int) -> str:
    """Return the kind of a process; "" if it has ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    except OSError:
        return ""
    return next((kind for part, kind in _KINDS.items() if part in line), "launcher" if line.strip() else "")


def _read_pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.partition("\nPss:")[2].split()[0]) * 1024 if "\nPss:" in text else 0


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
    step = {kind: (seconds - start.get(kind, 0.0)) / (len(times) - 1) for kind, seconds in last.items()}
    gigabytes = {kind: size / 1e9 for kind, size in meter.peak.items()}
    return {"start": start, "step": step, "all": end, "GB": gigabytes, "rewards": rewards, "tokens": tokens}


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
    parser.add_argument("--only", choices=["ours", "trl"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-trl", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="of our run")
    asked = parser.parse_args()
    if asked.as_trl:
        train_with_trl(asked.steps, asked.seed, asked.as_trl)
        return
    lines, results = [], []
    for seed in range(asked.seed, asked.seed + asked.rounds):
        for who in ("ours", "trl") if not asked.only else (asked.only,):
            result = measure_trl(asked.steps, seed) if who == "trl" else measure_ours(asked.steps, seed, asked.flags)
            results.append({"who": who, "seed": seed} | result)
            rewards = result["rewards"]
            lines.append(
                f"{who}, seed {seed}: {result['tokens']:,.0f} tokens, reward {rewards[0]:.3f} to {rewards[-1]:.3f}"
            )
            for name, unit in (("start", "CPU s"), ("step", "CPU s"), ("all", "CPU s"), ("GB", "GB of memory")):
                parts = sorted(result[name].items(), key=lambda item: -item[1])
                of_parts = ", ".join(f"{kind} {value:.2f}" for kind, value in parts)
                lines.append(f"  {name:<5} {sum(result[name].values()):6.2f} {unit}: {of_parts}")
    print(*lines, sep="\n")
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
