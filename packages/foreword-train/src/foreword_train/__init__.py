"""Training of drafters: data, losses, one resumable loop, and a report on the
result.
"""
