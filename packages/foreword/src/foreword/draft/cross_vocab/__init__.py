"""Drafters whose tokenizer is not the one of the target."""
