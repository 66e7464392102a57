"""Rollouts of several turns: environments of chat messages and tools, and exact tokens for the trainer."""
