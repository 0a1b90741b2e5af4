"""Checks of a backend for one model: float32, bit equality, the model's scores."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import named
from foreword.model.backend import Backend, Mode
from foreword.model.encoder import EncoderMemory, own_logits
from foreword.model.executors.native import experts
from foreword.model.kv.reads import Read
from foreword.model.probe.excerpt import excerpt, in_float32

Make = Callable[[PreTrainedModel, str, Mode], Backend]
"""(model, name, mode) -> backend."""
PARENTS = [-1, 0, 1, -1, 3, 3]
"""The tested tree: two branches from the root; the second one forks again."""
BRANCH = [3, 5]
"""The accepted branch, whose keys are moved; two more tokens are read after it."""
NOTHING: Mapping[int, object] = MappingProxyType({})
EXACT, ROUNDED = 1e-3, 0.3
"""Standard deviations.

Largest deviation from the model's own scores in float32; and in fewer bits, where the
model's own rounding is not known.
"""
LEAST = 0.1
"""Standard deviations always allowed in fewer bits, however little the model rounds."""
FACTOR = 4.0
"""Times the model's own rounding that a backend may deviate.

The largest deviations of two roundings of the same scores differ by a factor of up to
3.5. To leave out a layer costs 10 times the rounding.
"""
SENTENCE = (
    "The river was quiet in the morning, and three boats were waiting below the old "
    "stone bridge."
)
"""Text on which scores are compared: on random tokens a model's own rounding may cost
ten times as much, and hide errors.
"""


class Trial:
    """The checks that a backend must pass for one model."""

    def __init__(
        self, model: PreTrainedModel, make: Make, text: Sequence[int] = ()
    ) -> None:
        """`text`: the ids of SENTENCE, as the model reads it; none if not known."""
        self._model, self._make = model, make
        self._text = text
        self._rounded = model.dtype not in (torch.float32, torch.float64)
        self._experts = experts.consulted(model)
        random = probe_text(model)
        read = islice(cycle(text or random), len(random))
        self._texts = [list(read), random] if text else [random]
        self._references, self._allowed = self._own_scores()
        self._precise: Trial | None = None

    def _own_scores(self) -> tuple[list[Tensor], list[float]]:
        """Return the model's scores of each text, and how far others may differ."""
        scores = _references(self._model, self._texts)
        if not self._rounded:
            return scores, [EXACT] * len(scores)
        try:
            with in_float32(self._model):
                precise = _references(self._model, self._texts)
        except Exception:  # noqa: BLE001 - code that needs its dtype, or too little memory
            return scores, [ROUNDED] * len(scores)
        rounding = map(self._apart, scores, precise)
        return precise, [max(LEAST, FACTOR * error) for error in rounding]

    def wrong(self, backend: str, mode: Mode) -> str | None:
        """Return why the algorithm differs in float32; None if it does not."""
        if not self._rounded:
            return None
        if self._precise is None:
            twin = excerpt(self._model)
            precise = self if twin is None else Trial(twin, self._make, self._text)
            self._precise = precise
        if self._precise is self:
            return None
        try:
            deviation, allowed = self._precise.deviation(
                self._make(self._precise._model, backend, mode), mode
            )
        except Exception as error:  # noqa: BLE001 - any failure refuses the backend
            return named(error)
        return (
            None
            if deviation <= allowed
            else "its scores differ from the model's own in float32 too"
        )

    def deviation(self, backend: Backend, mode: Mode) -> tuple[float, float]:
        """Return the deviation of a backend's scores from the model's own, in their
        standard deviations, and what is allowed: of the text where it is worst.
        """
        pairs = [
            (self._apart(_score(backend, text, mode), reference), allowed)
            for text, reference, allowed in zip(
                self._texts, self._references, self._allowed, strict=True
            )
        ]
        return next(
            (pair for pair in pairs if math.isnan(pair[0])),
            max(pairs, key=lambda pair: pair[0] / pair[1]),
        )

    def _apart(self, scores: Tensor, reference: Tensor) -> float:
        rows = (scores.float() - reference).abs().amax(-1) / reference.std()
        # Near-ties between experts may resolve differently: single rows may deviate,
        # but not as much as for other text.
        return float(
            max(rows.median(), rows.max() / 10) if self._experts else rows.max()
        )

    def batch_dependence(self, backend: Backend, mode: Mode) -> str | None:
        """Return why scores may depend on the batch; None if no bit does."""
        windows = getattr(backend, "windows", None)
        if windows is not None and (reason := _missing_window(self._model, windows)):
            return reason
        if not getattr(backend, "probed", False):
            return None
        return (
            None
            if batch_invariant(backend, probe_text(self._model), mode)
            else "the bits of a score depend on the other rows of the batch"
        )


def probe_text(model: PreTrainedModel) -> list[int]:
    """Return the token ids that the checks read."""
    vocab = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(
        vocab // 8, vocab, (9 + len(PARENTS) + 2,), generator=generator
    ).tolist()


def _split(tokens: list[int]) -> tuple[list[int], list[int], list[int]]:
    return tokens[:9], tokens[9 : 9 + len(PARENTS)], tokens[9 + len(PARENTS) :]


def _open(backend: Backend, id: int, materials: Mapping[int, object] = NOTHING) -> None:
    backend.open(id, 64)
    sources = backend.memory(EncoderMemory)
    if sources is not None:
        backend.give(id, sources.probe_source)
    if id in materials:
        backend.give(id, materials[id])


@torch.inference_mode()
def _references(
    model: PreTrainedModel, texts: Sequence[list[int]]
) -> list[Float[Tensor, "scored vocab"]]:
    """Return the model's own scores of texts without a cache, in one forward: of the
    prompt, of every draft token, then of two tokens after a branch.
    """
    paths: list[list[int]] = []
    rows: list[tuple[int, int]] = []
    for text in texts:
        prompt, draft_tokens, after = _split(text)
        nodes: list[list[int]] = []
        for token, parent in zip(draft_tokens, PARENTS, strict=True):
            nodes.append(([] if parent < 0 else nodes[parent]) + [token])
        branch = [draft_tokens[node] for node in BRANCH]
        ends = [[], *nodes, branch + after[:1], branch + after]
        leaves = [nodes[2], nodes[4], branch + after]
        for end in ends:
            leaf = next(i for i, leaf in enumerate(leaves) if leaf[: len(end)] == end)
            rows.append((len(paths) + leaf, len(prompt) + len(end) - 1))
        paths += [prompt + leaf for leaf in leaves]
    longest = max(map(len, paths))
    padded = [path + path[-1:] * (longest - len(path)) for path in paths]
    scores = own_logits(model, torch.tensor(padded))
    scored = torch.stack([scores[path, index] for path, index in rows])
    return list(scored.float().split(len(rows) // len(texts)))


def _score(
    backend: Backend,
    tokens: list[int],
    mode: Mode,
) -> Float[Tensor, "scored vocab"]:
    """Return the same scores by a backend: prompt in two chunks; a tree in one forward,
    rollback to a branch and two more; or chains with rollbacks between.
    """
    prompt, draft_tokens, after = _split(tokens)
    _open(backend, 0)
    try:
        backend.read([Read(0, 0, prompt[:4], keep=0)])
        if mode is Mode.TREE:
            text = prompt[4:] + draft_tokens
            first = backend.read([Read(0, 4, text, PARENTS, keep=7)])
            backend.move(0, [len(prompt) + node for node in BRANCH], len(prompt))
            return torch.cat([first, backend.read([Read(0, 11, after, keep=2)])])
        chains = [
            Read(0, 4, prompt[4:] + draft_tokens[:3], keep=4),
            Read(0, 9, draft_tokens[3:5], keep=2),
            Read(0, 10, draft_tokens[5:] + after, keep=3),
        ]
        return torch.cat([backend.read([chain]) for chain in chains])
    finally:
        backend.close(0)


def batch_invariant(
    backend: Backend,
    tokens: list[int],
    mode: Mode,
    materials: Mapping[int, object] = NOTHING,
) -> bool:
    """Return whether scores are bit-identical token by token, batched in chunks with
    rejected draft tokens, and in trees.

    Sequences 0 and 1 are compared, beside sequence 2; each is given its entry of
    `materials`.
    """
    prompt, right = tokens[:9], tokens[9:]
    for name in (0, 1, 2):
        _open(backend, name, materials)
    try:
        alone = [backend.read([Read(0, 0, prompt, keep=1)])]
        alone += [
            backend.read([Read(0, 9 + index, [token], keep=1)])
            for index, token in enumerate(right)
        ]
        backend.read([Read(1, 0, prompt[:4], keep=0), Read(2, 0, right, keep=1)])
        past, index = 4, 0
        for good in (1, 3, 2):
            if mode is Mode.PLAIN:
                good = 0
            pending = prompt[4:] if index == 0 else right[index - 1 : index]
            missed = right[index + good : index + good + 2]
            wrong = [_other(token) for token in missed if mode is not Mode.PLAIN]
            reads = [
                Read(2, len(right) + index, right[: 1 + good], keep=1),
                Read(
                    1,
                    past,
                    pending + right[index : index + good] + wrong,
                    keep=1 + good + len(wrong),
                ),
            ]
            scores = backend.read(reads)[1 : 2 + good]
            if not torch.equal(scores, torch.cat(alone[index : index + 1 + good])):
                return False
            past += len(pending) + good
            index += good + 1
        if mode is Mode.TREE and not _tree_invariant(backend, tokens, alone):
            return False
        return mode is Mode.PLAIN or _index_invariant(backend, tokens, materials)
    finally:
        for name in (0, 1, 2):
            backend.close(name)


def _other(token: int, distance: int = 1) -> int:
    """Return another token of the vocabulary, which has at least 4."""
    return token - distance if token >= distance else token + distance


def _tree_invariant(backend: Backend, tokens: list[int], alone: list[Tensor]) -> bool:
    """Return whether accepted nodes after rejected siblings, and tokens after them,
    have the bits of `alone`: the scores of sequence 0 token by token.
    """
    prompt, right = tokens[:9], tokens[9:]
    accepted = [1, 4, 5]
    siblings = [_other(right[0]), _other(right[1]), _other(right[1], 2)]
    tree = [siblings[0], right[0], *siblings[1:], *right[1:3]]
    read = Read(1, 0, prompt + tree, [-1, -1, 1, 1, 1, 4], keep=1 + len(tree))
    scores = backend.read([read])[[0, *(1 + node for node in accepted)]]
    backend.move(1, [9 + node for node in accepted], 9)
    after = backend.read([Read(1, 12, right[3:5], keep=2)])
    return torch.equal(torch.cat([scores, after]), torch.cat(alone[:6]))


def _index_invariant(
    backend: Backend,
    tokens: list[int],
    materials: Mapping[int, object],
) -> bool:
    """Return whether rows keep their bits at another index of another forward."""
    text = (tokens * 3)[:48]
    for name in (0, 1):
        backend.close(name)
        _open(backend, name, materials)
    whole = backend.read([Read(0, 0, text, keep=len(text))])
    first = backend.read(
        [Read(2, 0, tokens[:5], keep=1), Read(1, 0, text[:17], keep=17)]
    )[1:]
    rest = backend.read(
        [Read(2, 5, tokens[:2], keep=1), Read(1, 17, text[17:], keep=len(text) - 17)]
    )[1:]
    return torch.equal(whole, torch.cat([first, rest]))


def _missing_window(
    model: PreTrainedModel,
    windows: Mapping[int, int | None],
) -> str | None:
    """Return the layers without the config's window; too short a text hides it."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    windowed = ("sliding_attention", "chunked_attention")
    sliding = [i for i, kind in enumerate(kinds or ()) if kind in windowed]
    if (
        not kinds
        and getattr(config, "sliding_window", None)
        and getattr(config, "use_sliding_window", True)
    ):
        sliding = list(windows)
    missing = [layer for layer in sliding if windows.get(layer) is None]
    return (
        f"layers {missing} have a sliding window in the config but do not pass it"
        if missing
        else None
    )
