"""Roofline measurements: the time of a pass, and its lower bound on this machine."""
