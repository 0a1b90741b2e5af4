"""Drafters without a model: they look up draft tokens in the request, earlier answers
or a corpus.
"""
