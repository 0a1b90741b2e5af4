"""The page that shows rounds: static files, which the server serves, and one
self-contained file of recordings.
"""
