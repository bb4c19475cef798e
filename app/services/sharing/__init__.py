"""Several services on one database: which runs what, and how each learns what the others commit."""
