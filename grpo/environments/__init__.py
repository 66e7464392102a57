"""What a policy acts in: conversations of chat messages and tools. No module here knows tokens."""
