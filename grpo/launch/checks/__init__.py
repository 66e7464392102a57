"""The checks of the preflight, by concern. Each yields its problems with their remedies."""
