"""Commands on stored results as files."""
