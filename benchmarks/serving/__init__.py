"""What the service adds to a product, and what it bears."""
