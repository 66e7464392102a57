"""The settings of a run: one table, and how a value is chosen for each."""
