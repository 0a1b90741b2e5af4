"""Log-probabilities of the tokens of a prompt, from forwards of their own beside the
engine's rounds.
"""

from foreword.errors import InvalidRequest
from foreword.model.kv.reads import Read
from foreword.model.model import Model
from foreword.model.seq2seq import check_decoder_only
from foreword.sampling.draw import logprobs
from foreword.types import Request, TokenLogprob

CHUNK = 320
"""Tokens read in one forward: bounds the logits held; above 256 they would be text."""


def score(target: Model, request: Request) -> list[TokenLogprob | None]:
    """Return the log-probability (nats) of each token under the raw target; None for
    the first.

    Each lists `request.params.logprobs` likeliest tokens. The request must not be
    known to the target. Raises InvalidRequest for an encoder-decoder, whose prompt is
    only read.
    """
    check_decoder_only(target.seq2seq, target.name, "score a prompt")
    if request.images is not None:
        raise InvalidRequest(
            "cannot score a prompt: there are images in it. Score text alone"
        )
    tokens = request.tokens
    top = request.params.logprobs or 0
    # the last token is scored, not read
    last = len(tokens) - 1
    scored: list[TokenLogprob | None] = [None]
    target.open(request.id, len(tokens))
    if request.adapter is not None:
        target.give(request.id, request.adapter)
    try:
        for start in range(0, last, CHUNK):
            stop = min(start + CHUNK, last)
            part = tokens[start:stop]
            read = Read(request.id, start, part, keep=len(part))
            rows = target.read([read])
            scored += logprobs(rows, tokens[start + 1 : stop + 1], top)
    finally:
        target.close(request.id)
    return scored
