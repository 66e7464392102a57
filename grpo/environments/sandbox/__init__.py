"""Code that a model wrote, run in a process that can compute and nothing else."""
