"""Contests of the kernels and their peers: python -m benchmarks.kernels.peers."""
