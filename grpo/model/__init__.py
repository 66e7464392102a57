"""gpt-oss in the trainer: its files, loading, MXFP4, experts, attention, ZeRO-3, the vocabulary."""
