"""The service under cuts of power and under every order of its threads, from seeds."""
