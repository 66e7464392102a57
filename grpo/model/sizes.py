"""Sizes that bound what actor and engines hold on a GPU. Works without torch, since the plan uses them too."""

UNPACKED_BYTES = 1 << 30  # of unpacked expert weights at a time
REDUCE_BUCKET = 1 << 26  # elements of gradients that ranks reduce at a time: an adapter of rank 64 of the 120b fits
SCORED_TOKENS = 256  # whose logits exist at a time
DECODED_SEQUENCES = 128  # of an engine at a time: vLLM's default for OpenRLHF's engines
