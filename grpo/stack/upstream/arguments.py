"""The flags of a run, as OpenRLHF's and our argument parsers make them."""

import argparse

# OpenRLHF's own flags and ours (grpo.flags). A test compares every attribute that is read with the parser.
Arguments = argparse.Namespace
