"""Hardware counters: Nsight Compute in a process of its own, and the kernel's perf events."""
