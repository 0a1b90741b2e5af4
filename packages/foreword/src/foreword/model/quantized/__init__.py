"""Provides quantized weights: how checkpoints store them, and the one form that the
backends take.
"""
