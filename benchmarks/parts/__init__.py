"""Parts shared by benchmarks: models with the shapes of the 120b, ranks, memory, and the ranks' workers."""
