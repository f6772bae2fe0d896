"""How a pipeline runs: where blocks are computed and in which order they are handed over. Never what they hold."""
