"""What calls of `model.generate` are given in tests: padded prompts, and a streamer
that keeps what it is handed.
"""

import torch
from transformers.generation.streamers import BaseStreamer


def ids(*lengths, pad=0):
    """Random prompts padded on the left, and their mask."""
    generator = torch.Generator().manual_seed(5)
    rows = [
        torch.randint(1, 320, (length,), generator=generator).tolist()
        for length in lengths
    ]
    width = max(lengths)
    return dict(
        input_ids=torch.tensor([[pad] * (width - len(row)) + row for row in rows]),
        attention_mask=torch.tensor(
            [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        ),
    )


class CollectedStream(BaseStreamer):
    """Keeps what it is handed."""

    def __init__(self):
        self.values, self.ended = [], 0

    def put(self, value):
        self.values.append(value.tolist())

    def end(self):
        self.ended += 1
