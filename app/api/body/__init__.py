"""Request bodies: received into the slab, whatever their form."""
