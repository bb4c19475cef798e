"""Memory that clients on this host lend: POSIX shared memory and CUDA IPC."""
