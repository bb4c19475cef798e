"""The autotuner: search, verification and measurement of configs. No SQL, no HTTP, no devices."""
