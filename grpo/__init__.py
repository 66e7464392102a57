"""The code behind the OpenRLHF patches. A room imports those below it; docs/architecture.md has their order."""
