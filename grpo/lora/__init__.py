"""The adapter: gathered from the ranks, sent to the engines, applied beside their frozen weights."""
