"""Causes of low speed, ranked by what their remedies could bring: of a drafter on its
target, and of a running server.
"""
