"""The tables and the picture that the pages show of the results."""
