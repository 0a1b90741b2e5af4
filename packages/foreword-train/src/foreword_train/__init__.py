"""Training of drafters: data, losses, one resumable loop, a report on the result."""
