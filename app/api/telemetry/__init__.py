"""What is counted and traced of requests, and what GET /metrics tells."""
