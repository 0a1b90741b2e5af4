"""The layers after which a target can leave early to draft (LayerSkip, Elhoushi et al.
2024): how they are written, and where a checkpoint names them.
"""

from collections.abc import Sequence

from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.model.layers import layer_count
from foreword.types import Draft, DraftTree

KEY = "early_exit_layers"
"""Key of a config: the layers after which the checkpoint was trained to exit."""
TRAINED = "layerskip"
"""Part of the names of Meta's checkpoints, whose config has no such key; all their
layers were trained.
"""
PREFIX = "exit:"
"""Prefix of a draft that is an exit, such as exit:4: the first 4 layers."""


def trained_exits(target: Model) -> tuple[int, ...]:
    """Return the exits that a target was trained for, by its config or its name; empty
    if there are none.
    """
    config = target.hf.config
    layers = layer_count(config)
    text = config.get_text_config()
    named = getattr(text, KEY, None)
    if named is None:
        named = getattr(config, KEY, ())
    if not named and TRAINED in target.name.lower():
        named = range(1, layers)
    exits = {one for one in named if type(one) is int}
    possible = exits & set(range(1, layers))
    return tuple(sorted(possible))


def given_exit(source: object) -> str | None:
    """Return the number of an exit's name, such as exit:4; None for other drafts."""
    text = str(source)
    if not text.startswith(PREFIX):
        return None
    return text.removeprefix(PREFIX)


def check_exit(layers: object, of: int, target: str, name: str) -> int:
    """Return the number of layers of an exit. Raises InvalidRequest, which calls it
    `name`, where the target of so many layers cannot exit there.
    """
    last = of - 1
    text = str(layers)
    is_number = text.isascii() and text.isdigit()
    if is_number and 0 < int(text) <= last:
        return int(text)
    raise InvalidRequest(
        f"cannot exit early with {name}: {target} has {of} "
        f"layers. Give a number from 1 to {last}"
    )


def read_first(draft: Draft, read: Sequence[DraftTree]) -> Draft:
    """Return a draft whose draft tokens that were read come first, in that order, so
    that their rows can stay where they are.

    `read`: what was read after each sequence.
    """
    pairs = zip(draft.trees, read, strict=True)
    orders = [_order(tree, before) for tree, before in pairs]
    return draft.pruned(orders)


def _order(tree: DraftTree, read: DraftTree) -> list[int]:
    """Return the nodes of a tree in the order of reading, then the others."""
    pairs = zip(read.parents, read.tokens, strict=True)
    places = {pair: place for place, pair in enumerate(pairs)}
    ranks = {-1: -1}
    late = len(read)
    nodes = zip(tree.parents, tree.tokens, strict=True)
    for node, (parent, token) in enumerate(nodes):
        above = ranks[parent]
        ranks[node] = places.get((above, token), late)
    del ranks[-1]
    return sorted(ranks, key=ranks.__getitem__)
