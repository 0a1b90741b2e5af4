"""Executors run rows of tokens through a model; they know no tasks."""
