"""Devices: backends, leases, worker processes and the host memory that they share."""
