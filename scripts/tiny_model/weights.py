"""The trained weights of the tiny model, kept with the code: training takes minutes, and CPUs round differently."""

import hashlib
import json
import tempfile
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GptOssForCausalLM, PreTrainedTokenizerFast
from transformers.utils.quantization_config import Mxfp4Config

from data.synthetic import Calculation, distinct_problems
from scripts.tiny_model import checkpoint
from scripts.tiny_model.tokenizer import STOP_TOKENS, write_tokenizer
from scripts.tiny_model.warm_start import FINAL, prompt_text, tiny_config, warm_start

FILE = Path(__file__).with_name("weights.safetensors")
CARD = FILE.with_suffix(".json")
SEED, STEPS, HELD_OUT = 0, 600, 256
SHARD_BYTES = 400_000
_ROOT = FILE.parents[2]
# What the weights depend on besides rounding.
_SOURCES = (
    "scripts/tiny_model/tokenizer.py",
    "scripts/tiny_model/warm_start.py",
    "scripts/tiny_model/words.txt",
    "grpo/model/mxfp4.py",
    "data/instructions.py",
    "data/synthetic.py",
)


def recipe() -> str:
    """Return a hash of the arguments and the code that a training depends on."""
    digest = hashlib.sha256(f"seed {SEED} steps {STEPS}".encode())
    for source in _SOURCES:
        digest.update((_ROOT / source).read_bytes())
    return digest.hexdigest()


def read() -> dict[str, torch.Tensor]:
    """Return the kept tensors of a checkpoint file: blocks and scales uint8, all else bf16."""
    return load_file(FILE)


def write_model(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a whole checkpoint: tokenizer, settings, and tensors in shards."""
    write_tokenizer(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    stop_ids = tokenizer.convert_tokens_to_ids(list(STOP_TOKENS))
    rows = len(tensors["model.embed_tokens.weight"])
    checkpoint.write_config(directory, tiny_config(rows), stop_ids, tokenizer.pad_token_id)
    save_torch_state_dict(dict(sorted(tensors.items())), directory, max_shard_size=SHARD_BYTES)


def train(steps: int = STEPS) -> None:
    """Train the model, and keep its weights and the facts about it: minutes on one core."""
    # With one thread, sums round the same everywhere, and other work on the cores does not stall thread barriers.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        # Rows beyond the last token, as in the real vocabulary of 201,088.
        rows = (len(tokenizer) // 64 + 1) * 64
        tensors = dict(checkpoint.packed_tensors(warm_start(tokenizer, rows, steps, SEED)))
        write_model(Path(folder), tensors)
        stored = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="eager", quantization_config=Mxfp4Config(dequantize=True)
        ).eval()
        accuracy = sampled_accuracy(stored, tokenizer, HELD_OUT, SEED)
    facts = {"parameters": checkpoint.count_parameters(tensors), "accuracy": accuracy, "held_out": HELD_OUT}
    save_file(tensors, FILE, metadata={"format": "pt"})
    CARD.write_text(json.dumps({"recipe": recipe(), "facts": facts}, indent=2) + "\n", encoding="utf-8")


def is_correct(problem: Calculation, response: str) -> bool:
    """Say whether the response (special tokens kept) ends with a final message that is the boxed answer."""
    return response.endswith(f"{FINAL}\\boxed{{{problem.answer}}}<|return|>")


@torch.no_grad()
def sampled_accuracy(model: GptOssForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int, seed: int) -> float:
    """Return the share of `count` held-out problems that one sample at temperature 1 answers correctly."""
    torch.manual_seed(seed)
    problems = distinct_problems("eval", count)
    texts = [prompt_text(tokenizer, problem.prompt) for problem in problems]
    inputs = tokenizer(texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
    tokens = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=True,
        temperature=1.0,
        max_new_tokens=48,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    responses = tokenizer.batch_decode(tokens[:, inputs.input_ids.shape[1] :])
    answered = [response.split(tokenizer.pad_token)[0] for response in responses]
    return sum(map(is_correct, problems, answered)) / count
