"""Held-out evaluation: samples of a model on a data set, their grades, and what these say with how much certainty."""
