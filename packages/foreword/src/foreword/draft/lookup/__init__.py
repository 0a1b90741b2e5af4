"""Drafters without a model: they look up draft tokens in the text, earlier answers
or a corpus.
"""
