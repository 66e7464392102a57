"""Diagnoses a run from its metrics: rules on robust statistics, silent without enough data and on healthy runs."""
