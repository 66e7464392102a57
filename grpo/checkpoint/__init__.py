"""Checkpoints: adapter and trainer state, whole or absent, and which of them stay."""
