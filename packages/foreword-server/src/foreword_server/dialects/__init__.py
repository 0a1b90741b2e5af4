"""Provides one module for each API: the fields it accepts, their translation, and how
its answers are written.
"""
