"""The backend that runs any decoder of transformers with its keys and values in a pool
of slots.
"""
