"""Products: admission, buffers in the slab, the choice of kernel, dynamic batching."""
