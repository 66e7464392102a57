"""The loop that this project owns: a step of GRPO on the controller, and its update on the ranks of the actor."""
