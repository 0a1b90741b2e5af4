"""Drafters made of several drafters."""
