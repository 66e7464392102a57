"""The seam to OpenRLHF: one module for each patched file, the only code of ours that the patches import.

A module has the name of the upstream file, and its functions stand in the order in which that file calls them. A hook
calls a room of `grpo/` and decides nothing but what depends on OpenRLHF's version.
"""
