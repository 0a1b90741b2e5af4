"""The executor over the cache of transformers."""
