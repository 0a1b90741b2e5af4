"""The site of the documentation: what the code writes of it, and how it is built."""
