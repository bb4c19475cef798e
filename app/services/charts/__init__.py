"""What charts of stored trials show, aggregated here so that a page need not fetch every trial."""
