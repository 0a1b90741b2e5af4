"""The next-token distribution of one request, from logits and sampling parameters.
Pure functions.

Rows are positions (nodes of a draft tree). A row's result never depends on other rows,
as plain decoding must agree.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.sampling import FORBIDDEN, Logits
from foreword.types import LogitsProcessor, Request, SamplingParams
from foreword.types.constraint import CONSTRAINTS

Paths = list[list[int]]
Columns = frozenset[int]


def weights(
    logits: Logits,
    request: Request,
    paths: Paths | None = None,
) -> Logits:
    """Return the log-weights of the next token after each row, Float32, unnormalised;
    -inf = forbidden.

    `paths[r]` holds the draft tokens between the last committed token and row r; read
    only if `request.params.reads_path`. Bias, penalties and filters apply in the order
    of transformers' `generate`, the request's grammar after its processors. At
    temperature 0 the filters are skipped, as they cannot change the argmax. May return
    `logits` itself.

    Raises InvalidRequest if a row allows no token, and whatever the request's processor
    raises.
    """
    params, scores = request.params, logits.float()
    if params.logit_bias:
        scores = _biased(scores, params)
    if params.allowed_token_ids:
        scores = _allowed(scores, params.allowed_token_ids)
    if params.reads_path:
        if paths is None:
            raise InvalidRequest(
                "cannot apply these parameters: they read the tokens before each row. "
                "Pass paths, one list for each row"
            )
        scores = _after_paths(scores, request, paths)
        limits = (
            "allowed_token_ids",
            "bad_word_ids",
            "min_tokens",
            "processors",
            *CONSTRAINTS,
        )
        named = [name for name in limits if getattr(params, name)]
        if named and bool((scores == FORBIDDEN).all(-1).any()):
            raise InvalidRequest(
                "cannot choose a token: every token is forbidden at a position. Relax "
                f"{' or '.join(named)}"
            )
    if params.greedy or params.neutral:
        return scores
    from foreword.sampling.filters import (
        filtered,  # which the usual request never needs
    )

    return filtered(scores, params)


def weights_or_invalid(
    logits: Logits, request: Request, paths: Paths | None = None
) -> tuple[Logits, Columns]:
    """Return `weights` and the invalid rows, where a draft path makes a processor fail
    or forbids every token.

    A draft path must not fail the request: invalid rows hold zeros. A row with an empty
    path belongs to the request itself, so its error is raised.
    """
    if not request.params.reads_path or paths is None:
        return weights(logits, request, paths), frozenset()
    try:
        return weights(logits, request, paths), frozenset()
    except Exception:  # noqa: BLE001 - a processor can raise anything; retry row by row
        rows, invalid = [], set()
    for row, path in enumerate(paths):
        try:
            rows.append(weights(logits[row : row + 1], request, [path]))
        except Exception:  # as above
            if not path:
                raise
            rows.append(torch.zeros_like(logits[row : row + 1], dtype=torch.float32))
            invalid.add(row)
    return torch.cat(rows), frozenset(invalid)


def _biased(scores: Logits, params: SamplingParams) -> Logits:
    ids, values = list(params.logit_bias), list(params.logit_bias.values())
    if max(ids) >= scores.shape[-1]:
        raise InvalidRequest(
            f"cannot apply logit_bias: it has token id {max(ids)}, but the vocabulary "
            f"has {scores.shape[-1]} tokens"
        )
    bias = scores.new_zeros(scores.shape[-1])
    bias[torch.tensor(ids, device=scores.device)] = torch.tensor(
        values, dtype=scores.dtype, device=scores.device
    )
    return scores + bias


def _allowed(scores: Logits, ids: Sequence[int]) -> Logits:
    """Forbid all token ids but these."""
    if max(ids) >= scores.shape[-1]:
        raise InvalidRequest(
            f"cannot apply allowed_token_ids: it has token id {max(ids)}, but the "
            f"vocabulary has {scores.shape[-1]} tokens"
        )
    forbidden = torch.ones(scores.shape[-1], dtype=torch.bool, device=scores.device)
    forbidden[torch.tensor(ids, device=scores.device)] = False
    return scores.masked_fill(forbidden, FORBIDDEN)


def _after_paths(
    scores: Logits,
    request: Request,
    paths: Paths,
) -> Logits:
    """Apply everything that depends on the tokens before a row."""
    params = request.params
    if len(paths) != scores.shape[0]:
        raise InvalidRequest(
            f"paths must hold one list for each row of logits: {scores.shape[0]}, got "
            f"{len(paths)}"
        )
    if params.repetition_penalty != 1:
        ids, counts = _counts(scores, request.tokens, paths)
        raw = scores[:, ids]
        penalty = params.repetition_penalty
        lowered = torch.where(raw < 0, raw * penalty, raw / penalty)
        penalised = torch.where(counts > 0, lowered, raw)
        scores = scores.index_copy(1, ids, penalised)
    if params.presence_penalty or params.frequency_penalty:
        ids, counts = _counts(scores, request.tokens[request.prompt :], paths)
        penalised = (
            scores[:, ids]
            - params.frequency_penalty * counts
            - params.presence_penalty * (counts > 0).float()
        )
        scores = scores.index_copy(1, ids, penalised)
    if params.bad_word_ids or request.produced < params.min_tokens:
        scores = scores.masked_fill(_forbidden(scores, request, paths), FORBIDDEN)
    for processor in params.processors:
        scores = _processed(scores, processor, request.tokens, paths)
    if request.grammar is not None:
        allowed = request.grammar.allowed(request.tokens, paths)
        scores = scores.masked_fill(~allowed.to(scores.device), FORBIDDEN)
    return scores


def _counts(
    scores: Logits, tokens: list[int], paths: Paths
) -> tuple[Int[Tensor, "seen"], Float[Tensor, "rows seen"]]:
    """Return the ids in `tokens` or a path, and their counts by row (exact < 2**24)."""
    known = [token for token in tokens if token < scores.shape[-1]]
    generated = torch.tensor(known, dtype=torch.int64)
    cells = [(row, token) for row, path in enumerate(paths) for token in path]
    rows, drafted = torch.tensor(cells, dtype=torch.int64).view(-1, 2).T.contiguous()
    ids = torch.cat([generated, drafted]).unique()
    # column of each token among `ids`
    columns = torch.searchsorted(ids, generated)
    counts = torch.bincount(columns, minlength=len(ids)).float().repeat(len(paths), 1)
    where = (rows, torch.searchsorted(ids, drafted))
    counts.index_put_(where, counts.new_ones(len(rows)), accumulate=True)
    return ids.to(scores.device), counts.to(scores.device)


def _forbidden(
    scores: Logits, request: Request, paths: Paths
) -> Bool[Tensor, "rows vocab"]:
    """Return the mask of tokens that end a bad word, or the text before min_tokens."""
    params, vocab = request.params, scores.shape[-1]
    ends = {*request.eos, *params.stop_token_ids}
    reach = max(map(len, params.bad_word_ids), default=0)
    tail = request.tokens[-reach:] if reach else []
    cells = []
    for row, path in enumerate(paths):
        text = [*tail, *path]
        banned: set[int] = set()
        for word in params.bad_word_ids:
            start = max(0, len(text) - len(word) + 1)
            if list(word[:-1]) == text[start:]:
                banned.add(word[-1])
        if request.produced + len(path) < params.min_tokens:
            banned |= ends
        cells += [(row, token) for token in banned if token < vocab]
    mask = torch.zeros_like(scores, dtype=torch.bool)
    if cells:
        rows, tokens = torch.tensor(cells, device=scores.device).unbind(1)
        mask[rows, tokens] = True
    return mask


def _processed(
    scores: Logits,
    processor: LogitsProcessor,
    tokens: list[int],
    paths: Paths,
) -> Logits:
    """Call the processor once per row, on copies, because it may modify its input."""
    rows = []
    for row, path in enumerate(paths):
        text = torch.tensor([[*tokens, *path]], dtype=torch.int64, device=scores.device)
        before = scores[row : row + 1]
        rows.append(checked(processor, processor(text, before.clone()), before))
    return torch.cat(rows)


def checked(
    processor: LogitsProcessor,
    result: object,
    before: Logits,
) -> Logits:
    """Return a processor's result as Float32.

    Raises InvalidRequest, with its name, if the result does not have the form of
    logits.
    """
    wrong = None
    if not isinstance(result, Tensor):
        wrong = f"it returned {type(result).__name__}, not a tensor"
    elif result.shape != before.shape:
        wrong = f"it returned the shape {tuple(result.shape)} for {tuple(before.shape)}"
    elif not result.is_floating_point():
        wrong = (
            f"it returned {str(result.dtype).removeprefix('torch.')}, not "
            "floating-point numbers"
        )
    elif result.device != before.device:
        wrong = (
            f"it returned a tensor on {result.device}, and the logits are on "
            f"{before.device}"
        )
    # neither is true of NaN
    elif not bool((result < math.inf).all()) and bool((before < math.inf).all()):
        wrong = "it returned NaN or infinity"
    if wrong is None:
        return cast("Tensor", result).float()
    name = getattr(processor, "__name__", None) or type(processor).__name__
    raise InvalidRequest(
        f"cannot use the logits processor {name}: {wrong}. Return logits of the given "
        "shape, dtype and device"
    )
