"""Drafters that run a cheaper view of the target itself."""
