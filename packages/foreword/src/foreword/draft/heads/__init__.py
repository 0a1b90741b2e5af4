"""Drafters that read the hidden states of the target."""
