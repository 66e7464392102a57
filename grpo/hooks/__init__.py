"""The seam to OpenRLHF: one module for each patched file. The patches import no other code of ours.

A module is named after the upstream file, and lists its functions in the order in which that file calls them. A hook
calls a room of `grpo/` and decides only what depends on OpenRLHF's version.
"""
