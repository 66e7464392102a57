"""The launcher behind `train_grpo.sh`: configuration, preflight, run directory, processes, progress."""
