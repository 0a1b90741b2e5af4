"""The certificate of a server: checks over HTTP, without its models."""
