"""What tests give `model.generate`: padded prompts, and a streamer that keeps all."""

from typing import Any

import torch
import transformers as hf
from transformers.generation.streamers import BaseStreamer

import foreword

OURS: dict[str, Any] = dict(custom_generate=foreword.generate)
"""Lets Foreword run a call."""
OUTPUT: dict[str, Any] = dict(return_dict_in_generate=True)
"""Asks for an object, with statistics if Foreword ran the call."""


def greedy(length: int) -> dict[str, Any]:
    """Arguments of a greedy text of at most so many tokens."""
    return dict(max_new_tokens=length, do_sample=False)


def few(row, text):
    """Allow five tokens, which the row and its last token name."""
    return [(int(text[-1]) * 7 + row + k) % 320 for k in range(5)]


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


class Alternate(hf.LogitsProcessor):
    """Forbids tokens of the parity of the last one: depends only on the path."""

    def __call__(self, input_ids, scores):
        odd = torch.arange(scores.shape[-1]) % 2
        return scores.masked_fill(odd == input_ids[:, -1:] % 2, -torch.inf)


class Sum(hf.StoppingCriteria):
    """Ends a row when the sum of its last three tokens is a multiple of seven."""

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -3:].sum(1) % 7 == 0
