"""From logits and parameters to the law of the next token, and from the law to a token. Pure; one sequence at a time.

Rows are positions (nodes of a draft tree). A row's result never depends on its neighbours: plain decoding must agree.
"""

import math
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foreword import candidates
from foreword.errors import InvalidRequest
from foreword.native import draws
from foreword.nucleus import ONE, Logits, fixed, goal
from foreword.types import LogitsProcessor, SamplingParams, Sequence, TokenLogprob, Tree

Paths = list[list[int]]
Columns = frozenset[int]

_FORBIDDEN = -math.inf


def weights(logits: Logits, sequence: Sequence, paths: Paths | None = None) -> Logits:
    """Log-weights of the next token after each row, Float32, unnormalised; -inf = forbidden.

    `paths[r]` holds the drafted tokens between the last committed token and row r; read only where
    `sequence.params.reads_path`. Bias, penalties and filters act in the order of transformers' `generate`; at
    temperature 0 the filters are left out, for they cannot move the likeliest token. May return `logits` itself.

    Raises InvalidRequest where a row allows nothing, and whatever a request's own processor raises.
    """
    params, scores = sequence.params, logits.float()
    if params.logit_bias:
        scores = _biased(scores, params)
    if params.reads_path:
        if paths is None:
            raise InvalidRequest("these parameters read the tokens before each row: pass paths, one list for each row")
        scores = _after_paths(scores, sequence, paths)
        named = [name for name in ("bad_word_ids", "min_tokens", "processors") if getattr(params, name)]
        if named and bool((scores == _FORBIDDEN).all(-1).any()):
            raise InvalidRequest(f"every token is forbidden at a position; relax {' or '.join(named)}")
    return scores if params.greedy else _filtered(scores, params)


def lawful(logits: Logits, sequence: Sequence, paths: Paths | None = None) -> tuple[Logits, Columns]:
    """`weights`, and the rows that have none: a guess may lead where a processor fails or every token is forbidden.

    That is the guess's fault, and no request may fail for it. Such rows hold zeros. A row with an empty path is the
    request's own: there the error is raised.
    """
    if not sequence.params.reads_path or paths is None:
        return weights(logits, sequence, paths), frozenset()
    try:
        return weights(logits, sequence, paths), frozenset()
    except Exception:  # noqa: BLE001 - a processor is not ours; it is asked again, row by row
        rows, lost = [], set()
    for row, path in enumerate(paths):
        try:
            rows.append(weights(logits[row : row + 1], sequence, [path]))
        except Exception:  # as above
            if not path:
                raise
            rows.append(torch.zeros_like(logits[row : row + 1], dtype=torch.float32))
            lost.add(row)
    return torch.cat(rows), frozenset(lost)


def one_hot(weights: Logits) -> Logits:
    """The law at temperature 0 as log-weights: 0 at each row's argmax, -inf elsewhere."""
    return torch.full_like(weights, _FORBIDDEN).scatter_(-1, weights.argmax(-1, keepdim=True), 0.0)


def probs(weights: Logits) -> Logits:
    """Probabilities of log-weights, Float32; each row sums to 1."""
    return weights.softmax(-1, dtype=torch.float32)


def entropy(weights: Logits) -> Float[Tensor, "rows"]:
    """Entropy of each row's law, in nats."""
    return torch.special.entr(probs(weights)).sum(-1)


def draw(weights: Logits, gumbel: Logits | None) -> Int[Tensor, "rows"]:
    """The token of each row, Int64: argmax(weights + gumbel), which follows softmax(weights) (Gumbel-max; Gumbel 1954).

    None stands for temperature 0. The first index wins ties.
    """
    return (weights if gumbel is None else weights + gumbel).argmax(-1)


def choose(
    logits: Logits, params: SamplingParams, gumbel: Float[Tensor, "positions vocab"] | None, places: list[int]
) -> list[int]:
    """Draw under a plain law (`params.plain`): `draw(weights(...), gumbel[places])`.

    Row r is drawn with the noise of place places[r]. In one pass where there is a compiler.
    """
    found = draws.likeliest(logits, gumbel, places, params.temperature)
    if found is not None:
        return found
    scores = logits.float() if params.greedy else logits.float() / params.temperature
    return draw(scores, None if gumbel is None else gumbel[places]).tolist()


def walk(
    logits: Logits, params: SamplingParams, gumbel: Float[Tensor, "depths vocab"] | None, tree: Tree
) -> tuple[list[int], int] | None:
    """Draw under a plain law after the text, then after each guess that is what was drawn before it, and no more.

    Row 0 is drawn after the text, row i + 1 after guess i, with the noise of its depth. Returns the guesses that were
    right and the draw after them: what `follow` (verify/match.py) makes of all that `choose` draws. None where there is
    no pass that does it at once.
    """
    return draws.follow(logits, gumbel, params.temperature, tree.tokens, tree.parents)


def logprobs(logits: Logits, tokens: list[int], top: int) -> list[TokenLogprob]:
    """Log-probability (nats) of tokens[r] in row r and of that row's `top` likeliest tokens, under the raw target."""
    laws = logits.float().log_softmax(-1)
    index = torch.tensor(tokens, dtype=torch.int64, device=laws.device).unsqueeze(1)
    written = laws.gather(1, index).squeeze(1).tolist()
    best = laws.topk(min(top, laws.shape[-1]))
    likeliest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprob(token, value, tuple(zip(ids, values, strict=True)))
        for token, value, (ids, values) in zip(tokens, written, likeliest, strict=True)
    ]


def _biased(scores: Logits, params: SamplingParams) -> Logits:
    ids, values = list(params.logit_bias), list(params.logit_bias.values())
    if max(ids) >= scores.shape[-1]:
        raise InvalidRequest(f"logit_bias has token id {max(ids)}, but the vocabulary has {scores.shape[-1]} tokens")
    bias = scores.new_zeros(scores.shape[-1])
    bias[torch.tensor(ids, device=scores.device)] = torch.tensor(values, dtype=scores.dtype, device=scores.device)
    return scores + bias


def _after_paths(scores: Logits, sequence: Sequence, paths: Paths) -> Logits:
    """Everything that depends on the tokens before a row."""
    params = sequence.params
    if len(paths) != scores.shape[0]:
        raise InvalidRequest(f"paths must hold one list for each row of logits: {scores.shape[0]}, got {len(paths)}")
    if params.repetition_penalty != 1:
        ids, counts = _counts(scores, sequence.tokens, paths)
        raw, penalty = scores[:, ids], params.repetition_penalty
        penalised = torch.where(counts > 0, torch.where(raw < 0, raw * penalty, raw / penalty), raw)
        scores = scores.index_copy(1, ids, penalised)
    if params.presence_penalty or params.frequency_penalty:
        ids, counts = _counts(scores, sequence.tokens[sequence.prompt :], paths)
        penalised = scores[:, ids] - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        scores = scores.index_copy(1, ids, penalised)
    if params.bad_word_ids or sequence.produced < params.min_tokens:
        scores = scores.masked_fill(_forbidden(scores, sequence, paths), _FORBIDDEN)
    for processor in params.processors:
        scores = _processed(scores, processor, sequence.tokens, paths)
    return scores


def _counts(scores: Logits, tokens: list[int], paths: Paths) -> tuple[Int[Tensor, "seen"], Float[Tensor, "rows seen"]]:
    """The tokens in `tokens` or any path, and how often each is in `tokens` and the row's path (exact below 2**24)."""
    cells = [(row, token) for row, path in enumerate(paths) for token in path]
    said = torch.tensor([token for token in tokens if token < scores.shape[-1]], dtype=torch.int64)
    rows, guessed = torch.tensor(cells, dtype=torch.int64).view(-1, 2).T.contiguous()
    ids = torch.cat([said, guessed]).unique()
    counts = torch.bincount(torch.searchsorted(ids, said), minlength=len(ids)).float().repeat(len(paths), 1)
    counts.index_put_((rows, torch.searchsorted(ids, guessed)), torch.ones(len(rows)), accumulate=True)
    return ids.to(scores.device), counts.to(scores.device)


def _forbidden(scores: Logits, sequence: Sequence, paths: Paths) -> Bool[Tensor, "rows vocab"]:
    """Last tokens of bad words whose beginning the row's text ends with, and the end of text before min_tokens."""
    params, vocab = sequence.params, scores.shape[-1]
    ends = {*sequence.eos, *params.stop_token_ids}
    reach = max(map(len, params.bad_word_ids), default=0)
    tail = sequence.tokens[-reach:] if reach else []
    cells = []
    for row, path in enumerate(paths):
        text = [*tail, *path]
        words = (word for word in params.bad_word_ids if list(word[:-1]) == text[max(0, len(text) - len(word) + 1) :])
        banned = {word[-1] for word in words}
        if sequence.produced + len(path) < params.min_tokens:
            banned |= ends
        cells += [(row, token) for token in banned if token < vocab]
    mask = torch.zeros_like(scores, dtype=torch.bool)
    if cells:
        rows, tokens = torch.tensor(cells, device=scores.device).unbind(1)
        mask[rows, tokens] = True
    return mask


def _processed(scores: Logits, processor: LogitsProcessor, tokens: list[int], paths: Paths) -> Logits:
    """One call for each row, on copies: a processor may write to what it is given."""
    rows = []
    for row, path in enumerate(paths):
        text = torch.tensor([[*tokens, *path]], dtype=torch.int64, device=scores.device)
        before = scores[row : row + 1]
        rows.append(checked(processor, processor(text, before.clone()), before))
    return torch.cat(rows)


def checked(processor: LogitsProcessor, result: object, before: Logits) -> Logits:
    """Return the answer of a processor in Float32. Raises InvalidRequest, with its name, where it is no logits."""
    wrong = None
    if not isinstance(result, Tensor):
        wrong = f"it returned {type(result).__name__}, not a tensor"
    elif result.shape != before.shape:
        wrong = f"it returned the shape {tuple(result.shape)} for {tuple(before.shape)}"
    elif not result.is_floating_point():
        wrong = f"it returned {str(result.dtype).removeprefix('torch.')}, not floating-point numbers"
    elif result.device != before.device:
        wrong = f"it returned a tensor on {result.device}, and the logits are on {before.device}"
    elif not bool((result < math.inf).all()) and bool((before < math.inf).all()):  # neither is true of NaN
        wrong = "it returned NaN or infinity"
    if wrong is None:
        return cast("Tensor", result).float()
    name = getattr(processor, "__name__", None) or type(processor).__name__
    raise InvalidRequest(
        f"cannot use the logits processor {name}: {wrong}. Return logits of the shape, kind and device that it is given"
    )


def _filtered(scores: Logits, params: SamplingParams) -> Logits:
    """Temperature and the filters after it; a parameter at its neutral value costs nothing."""
    if not candidates.fit(params, scores.shape[-1]):
        return _filtered_all(scores, params)
    found, untold = candidates.among_best(scores, params)
    if bool(untold.any()):
        found[untold] = _filtered_all(scores[untold], params)
    return found


def _filtered_all(scores: Logits, params: SamplingParams) -> Logits:
    """The plain definition, over all tokens."""
    if params.temperature != 1:
        scores = scores / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(params.top_k).values[:, -1:], _FORBIDDEN)
    if params.top_p < 1:
        scores = candidates.top_p(scores, params.top_p)
    if params.min_p > 0:
        floor = scores.amax(-1, keepdim=True) + math.log(params.min_p)
        scores = scores.masked_fill(scores < floor, _FORBIDDEN)
    return _typical(scores, params.typical_p) if params.typical_p < 1 else scores


def _typical(scores: Logits, mass: float) -> Logits:
    """Locally typical sampling (Meister et al. 2022, section 4): keep what surprises most nearly as expected."""
    laws = scores.log_softmax(-1)
    masses = laws.exp()
    surprise = torch.where(masses > 0, -laws * masses, 0.0)
    entropy = (fixed(surprise).sum(-1, keepdim=True).double() / ONE).float()
    distance = (-laws - entropy).abs()
    ordered, order = distance.sort(stable=True)
    count = (fixed(masses.gather(1, order)).cumsum(-1) < goal(mass)).sum(-1, keepdim=True)
    cut = ordered.gather(1, count.clamp_(max=scores.shape[-1] - 1))
    return scores.masked_fill(distance > cut, _FORBIDDEN)
