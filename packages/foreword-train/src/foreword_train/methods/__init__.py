"""One training task for each method."""
