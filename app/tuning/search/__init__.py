"""What to try next: search strategies, their history and their models."""
