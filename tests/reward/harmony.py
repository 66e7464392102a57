"""Responses as gpt-oss writes them."""

ANALYSIS = "<|channel|>analysis<|message|>{}<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>{}<|return|>"


def format_harmony(thought: str, reply: str) -> str:
    return ANALYSIS.format(thought) + FINAL.format(reply)


PROMPT = (
    "<|start|>system<|message|>Think.<|end|><|start|>user<|message|>What is 3 + 4? Box it.<|end|><|start|>assistant"
)
RIGHT = "<|channel|>analysis<|message|>3+4<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{7}<|return|>"
WRONG = RIGHT.replace("{7}", "{8}")
UNFINISHED = "<|channel|>analysis<|message|>maybe \\boxed{7}"
