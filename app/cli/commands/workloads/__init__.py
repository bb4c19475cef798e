"""tilewise workload."""
