"""Enlarge targets and heads to other shapes without changing a token."""
