"""Recordings: one answer with every round that made it, as a JSON file
(docs/formats/recordings.md).

Reading one imports neither torch nor a model.
"""

from foreword.recording.recording import SCHEMA, VERSION, Machine, Recording, Totals

__all__ = ["SCHEMA", "VERSION", "Machine", "Recording", "Totals"]
