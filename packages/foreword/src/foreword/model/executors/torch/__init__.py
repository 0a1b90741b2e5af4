"""The backend of any decoder of transformers, keys and values in a pool of slots."""
