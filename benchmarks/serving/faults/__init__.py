"""What is acknowledged while processes are killed, stopped and ended."""
