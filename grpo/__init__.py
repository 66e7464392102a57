"""The code behind the OpenRLHF patches: one module per concern."""
