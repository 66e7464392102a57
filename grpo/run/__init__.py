"""The run directory: what a run writes, and how its readers read it."""
