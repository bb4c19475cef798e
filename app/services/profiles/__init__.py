"""Profiles of kernels: made in a device's turn of jobs, kept, and listed."""
