"""What lasts: devices, trials, bests and jobs, in SQLite or PostgreSQL."""
