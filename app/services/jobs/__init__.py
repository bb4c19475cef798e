"""Jobs as their owners see them, products made as jobs, and idempotent requests."""
