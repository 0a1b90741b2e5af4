"""Files of requests in OpenAI's batch format, answered by the server's own routes."""
