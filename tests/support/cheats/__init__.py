"""Servers that cheat in one way, over the bundled target and draft. Test code."""
