"""The checks of the preflight, by concern. Each yields what is wrong, with the remedy."""
