"""Comparison of the C library with that of another commit: bits, and speed."""
