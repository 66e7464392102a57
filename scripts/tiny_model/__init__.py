"""The parts of a tiny gpt-oss: architecture, tokenizer, warm start and checkpoint files."""
