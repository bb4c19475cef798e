"""The HTTP contract: routes, requests, answers and errors."""
