"""The use cases: they open transactions, and may be called by the API and the command line alike."""
