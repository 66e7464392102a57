"""Diagnoses a run from its metrics. docs/diagnosis.md is the page of its table."""
