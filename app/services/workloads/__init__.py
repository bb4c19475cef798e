"""Workloads: kept, tuned by time at stake, and reported on."""
