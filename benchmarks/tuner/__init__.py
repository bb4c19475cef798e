"""How well the tuner searches, measures and keeps its budget."""
