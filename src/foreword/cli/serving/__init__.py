"""Commands that serve: over HTTP, and a file of requests."""
