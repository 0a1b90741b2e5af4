"""A sequential test of drawn tokens against the laws that they should follow."""
