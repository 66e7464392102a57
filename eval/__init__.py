"""Held-out evaluation: a model's samples on a data set, their grades, and the results with their uncertainty."""
