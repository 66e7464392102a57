"""The operator's tools."""
