"""API dialects, one module each: request fields, their translation, the answer."""
