"""From a prompt to tokens: sampling, the account of tokens, the thinking budget."""
