"""Products in a worker: copies from and to the slab, launches, resident buffers."""
