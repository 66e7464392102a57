"""Multi-turn rollouts: environments of chat messages and tools, and exact tokens for the trainer."""
