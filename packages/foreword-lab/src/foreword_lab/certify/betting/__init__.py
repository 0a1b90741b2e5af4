"""A sequential test of drawn tokens against their stated distributions."""
