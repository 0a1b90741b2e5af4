"""HTTP server: OpenAI's and Anthropic's dialects over one engine (docs/serving.md)."""
