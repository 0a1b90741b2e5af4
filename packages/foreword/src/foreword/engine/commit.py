"""The commit step: append accepted tokens; end a request exactly at its stop."""

from foreword.types import Delta, Origin, Request, TokenLogprob


def commit(
    request: Request,
    tokens: list[int],
    origins: list[Origin],
    logprobs: list[TokenLogprob],
    drafted: int,
) -> Delta:
    """Append `tokens` up to the first that ends the request; discard later ones."""
    committed: list[int] = []
    pieces: list[str] = []
    for token in tokens:
        request.tokens.append(token)
        committed.append(token)
        text = _append_text(request, token)
        pieces.append(text)
        if request.finish_reason:
            break
    request.stats.tokens += len(committed)
    return Delta(
        id=request.id,
        tokens=tuple(committed),
        origins=tuple(origins[: len(committed)]),
        text="".join(pieces),
        pieces=tuple(pieces),
        logprobs=tuple(logprobs[: len(committed)]),
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        drafted=drafted,
    )


def _append_text(request: Request, token: int) -> str:
    """Return the text that a new token makes final; set finish_reason at an end."""
    reader, params = request.reader, request.params
    if token in params.stop_token_ids or (
        token in request.eos and not params.ignore_eos
    ):
        # also where the model itself ends there
        cut = request.forced_end is not None and request.room <= 0
        # such a token ends the text and is not part of it
        request.finish_reason = "length" if cut else "stop"
        if token in params.stop_token_ids:
            request.stop_reason = token
        return reader.finish() if reader else ""
    text, stopped = reader.push(token) if reader else ("", False)
    if stopped:
        request.finish_reason = "stop"
        request.stop_reason = reader.stop if reader else None
    elif request.grammar is not None and request.grammar.finished(request.tokens):
        request.finish_reason = "stop"
        text += reader.finish() if reader else ""
    elif request.room <= 0:
        request.finish_reason = "length"
        text += reader.finish() if reader else ""
    return text
