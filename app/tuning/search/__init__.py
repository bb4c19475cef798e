"""Search strategies: the configs to try next, by history and models."""
