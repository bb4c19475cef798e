"""How fast and how accurate the kernels are."""
