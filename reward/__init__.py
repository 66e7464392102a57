"""Answer extraction, grading and the reward function that OpenRLHF loads."""
