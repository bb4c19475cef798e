"""Finding the fastest right config: what to try next, whether it is right, how fast it is. No SQL, no HTTP."""
