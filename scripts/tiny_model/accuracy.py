"""Exact match of the tiny model on held-out problems, answers sampled at temperature 1."""

import torch
from transformers import GptOssForCausalLM, PreTrainedTokenizerFast

from data.synthetic import Calculation, distinct_problems
from scripts.tiny_model.demonstrations import FINAL
from scripts.tiny_model.warm_start import prompt_text

MAX_NEW_TOKENS = 48


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
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    responses = tokenizer.batch_decode(tokens[:, inputs.input_ids.shape[1] :])
    answered = [response.split(tokenizer.pad_token)[0] for response in responses]
    return sum(map(is_correct, problems, answered)) / count
