"""Faults of draws: other noise, or other distributions behind draft tokens."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import torch

from faults.fault import Fault, Plant
from foreword.sampling import logits as processing
from foreword.sampling.draw import drawn_tokens
from foreword.sampling.streams import NoiseStreams, text_keys
from foreword.verify import verifier
from foreword.verify.match import follow


def position_before(patch, _llm):
    def key(_streams, request):
        keys = text_keys(request)
        return None if request.params.greedy else keys[-2 if len(keys) > 1 else -1]

    patch.setattr(NoiseStreams, "key", key)


def equal_noise(patch, _llm):
    def walk(rows, draw, tree):
        return follow(drawn_tokens(rows, [draw] * len(rows)).tolist(), tree)

    patch.setattr(verifier, "walk", walk)


def after_drafts(change: Callable) -> Plant:
    """Plant other parameters in the rows after draft tokens."""

    def plant(patch, _llm):
        exact = processing.weights

        def weights(logits, request, paths=None):
            scores = exact(logits, request, paths)
            other = copy(request)
            other.params = change(request.params)
            if other.params == request.params or len(logits) == 1:
                return scores
            return torch.cat(
                [scores[:1], exact(logits[1:], other, paths and paths[1:])]
            )

        patch.setattr(processing, "weights", weights)

    return plant


def narrower(params):
    return replace(params, top_p=params.top_p * 0.9 if params.top_p < 1 else 1.0)


def without_min_p(params):
    return replace(params, min_p=0.0)


def unpenalised(patch, _llm):
    exact = processing._counts
    patch.setattr(
        processing,
        "_counts",
        lambda scores, tokens, paths: exact(scores, tokens, [[] for _ in paths]),
    )


DRAW_FAULTS: dict[str, Fault] = {
    "noise of the position before": Fault(position_before, quick=True),
    "one noise for all rows of a round": Fault(equal_noise, quick=True),
    "top_p a tenth low after draft tokens": Fault(after_drafts(narrower)),
    "min_p ignored after draft tokens": Fault(after_drafts(without_min_p)),
    "penalties that count no draft tokens": Fault(unpenalised, methods=("predicted",)),
}
