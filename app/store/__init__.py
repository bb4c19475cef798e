"""The store: devices, trials, bests, jobs and misses, in SQLite or PostgreSQL."""
