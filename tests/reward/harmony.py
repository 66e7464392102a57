"""Responses as gpt-oss writes them."""

ANALYSIS = "<|channel|>analysis<|message|>{}<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>{}<|return|>"


def harmony(thought: str, reply: str) -> str:
    return ANALYSIS.format(thought) + FINAL.format(reply)
