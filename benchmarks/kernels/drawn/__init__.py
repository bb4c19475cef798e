"""Shapes that nobody chose."""
