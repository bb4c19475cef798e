"""Exports on a device: their checks, their timing loops beside the service's, and what a call costs the host."""
