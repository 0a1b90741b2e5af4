"""Evidence that drafting changes no text on the user's own pair, machine or server:
checks, their statistics, and the report of them.
"""
