"""TRAIN: drafters that learn from a target: data, losses, one resumable loop, and a report of what came of it."""
