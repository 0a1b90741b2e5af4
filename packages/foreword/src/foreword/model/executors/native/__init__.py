"""The CPU backend: a whole forward in one C call."""
