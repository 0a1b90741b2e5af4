"""Causes of low speed that the metrics of a running server show."""
