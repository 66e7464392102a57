"""Diagnoses a run from its metrics. docs/tuning.md has its findings."""
