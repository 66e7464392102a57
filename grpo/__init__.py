"""The code behind the OpenRLHF patches. A package imports only those above it in docs/architecture.md."""
