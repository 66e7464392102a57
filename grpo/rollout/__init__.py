"""From a prompt to tokens: sampling, token accounts, the thinking budget."""
