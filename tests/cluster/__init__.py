"""Tests of a Ray cluster's devices."""
