"""Dataset preparation."""
