"""What the terminal shows of figures beside tables."""
