"""Health: what can serve now, by device; cordons; the verification of idle devices."""
