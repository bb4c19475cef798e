"""Readers of results: what they do with files that are cut, changed and hostile."""
