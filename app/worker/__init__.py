"""Code of a device worker, the process that holds one device; the service imports it for its types and functions."""
