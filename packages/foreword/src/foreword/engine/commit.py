"""The commit step: append accepted tokens, and end a sequence exactly at its stop, also
inside an accepted draft.
"""

from __future__ import annotations

from foreword.types import Delta, Origin, Request, TokenLogprob


def commit(
    sequence: Request,
    tokens: list[int],
    origins: list[Origin],
    logprobs: list[TokenLogprob],
    drafted: int,
) -> Delta:
    """Append `tokens` up to the first that ends the sequence; later ones are
    discarded.
    """
    kept: list[int] = []
    pieces: list[str] = []
    for token in tokens:
        sequence.tokens.append(token)
        kept.append(token)
        text = _append_text(sequence, token)
        pieces.append(text)
        if sequence.finish_reason:
            break
    sequence.stats.tokens += len(kept)
    return Delta(
        id=sequence.id,
        tokens=tuple(kept),
        origins=tuple(origins[: len(kept)]),
        text="".join(pieces),
        pieces=tuple(pieces),
        logprobs=tuple(logprobs[: len(kept)]),
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
        drafted=drafted,
    )


def _append_text(sequence: Request, token: int) -> str:
    """Return the text that a new token makes final; set finish_reason if it ends the
    sequence.
    """
    reader, params = sequence.reader, sequence.params
    if token in params.stop_token_ids or (
        token in sequence.eos and not params.ignore_eos
    ):
        # also where the model itself ends there
        cut = sequence.forced_end is not None and sequence.room <= 0
        # such a token ends the text and is not part of it
        sequence.finish_reason = "length" if cut else "stop"
        if token in params.stop_token_ids:
            sequence.stop_reason = token
        return reader.finish() if reader else ""
    text, stopped = reader.push(token) if reader else ("", False)
    if stopped:
        sequence.finish_reason = "stop"
        sequence.stop_reason = reader.stop if reader else None
    elif sequence.grammar is not None and sequence.grammar.finished(sequence.tokens):
        sequence.finish_reason = "stop"
        text += reader.finish() if reader else ""
    elif sequence.room <= 0:
        sequence.finish_reason = "length"
        text += reader.finish() if reader else ""
    return text
