"""How fast it is: samples, intervals, racing and drift."""
