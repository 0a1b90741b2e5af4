"""The HTTP server: other programs' chat dialects in front of one LLM."""
