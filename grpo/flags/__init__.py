"""The flags of a run: OpenRLHF's and ours in one parser, and which source sets each."""
