"""Training records: reading, packing, and regeneration by the target."""
