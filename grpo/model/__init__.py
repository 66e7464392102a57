"""gpt-oss in the trainer: its files, loading, MXFP4, ZeRO-3, the vocabulary."""
