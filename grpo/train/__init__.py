"""The loop that this project owns: the controller's step, from prompts to advantages, and a rank's part of it."""
