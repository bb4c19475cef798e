"""Routes by which results of tuning come and go as files."""
