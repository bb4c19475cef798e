"""Headers that several kernels include, and those that are generated."""
