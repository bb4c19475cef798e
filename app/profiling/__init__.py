"""Profiles of kernels: which figures there are, how a profiler's report is read, and what the figures say."""
