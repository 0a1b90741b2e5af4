"""Drafters without a model: they look up draft tokens in the sequence, earlier answers
or a corpus.
"""
