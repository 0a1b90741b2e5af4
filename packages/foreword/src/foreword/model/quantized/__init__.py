"""Quantized weights: how checkpoints store them, and the form that backends take."""
