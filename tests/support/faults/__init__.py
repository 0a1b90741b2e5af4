"""Faults that are planted in the engine of a pair, for its certificate to find."""
