"""Drafters without a model: they look up the text, earlier answers or a corpus."""
