"""The seam to OpenRLHF: one module for each patched file. The patches import no other code of ours.

A module is named after the upstream file. Most hooks are functions of the packages of `grpo/`. One that is written here
depends on OpenRLHF's version, or imports late.
"""
