"""Workloads over HTTP: files received, kept as counted problems, tuned and reported on."""
