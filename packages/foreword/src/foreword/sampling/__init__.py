"""Sampling: the next-token distribution, its filters, noise and draws."""
