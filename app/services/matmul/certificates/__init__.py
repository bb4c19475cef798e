"""Certificates: Freivalds' check of products, on their device or on the host, and what ties the two."""
