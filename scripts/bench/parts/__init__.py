"""What several benchmarks are made of: models with the shapes of the 120b, ranks, memory, and what ranks run."""
