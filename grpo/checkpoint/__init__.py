"""Checkpoints: adapter and trainer state, written whole or not at all, and which of them are kept."""
