"""Prediction of how replicas of a server behave under a load: a simulation of their
rounds, from measured costs.
"""
