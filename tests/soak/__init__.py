"""Repeated tiny runs with random faults, each continued, and compared with a run that nothing disturbed."""
