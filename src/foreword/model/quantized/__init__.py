"""Provides weights in few bits: how checkpoints store them, and the one form in which
the backends take them.
"""
