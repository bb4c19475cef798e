"""Reading of workloads: how fast, and in how much memory."""
