"""Interchange of results: what is exported of the store, and what principals import."""
