"""GUESS: one file per method. This registry is the only place outside a method's own file that names it."""

from __future__ import annotations

import difflib
import re
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from foreword.draft.base import HEAD, MODEL, Drafter
from foreword.draft.parts import Parts
from foreword.draft.recipe import Recipe
from foreword.errors import InvalidRequest, UnknownMethod, named
from foreword.model.checkpoint import kinds

METHODS: dict[str, str] = {
    "none": "foreword.draft.none:NoDrafter",
    "ngram": "foreword.draft.ngram:NgramDrafter",
    "suffix": "foreword.draft.suffix:SuffixDrafter",
    "predicted": "foreword.draft.predicted:PredictedDrafter",
    "recycle": "foreword.draft.recycle:RecyclingDrafter",
    "lookahead": "foreword.draft.lookahead:LookaheadDrafter",
    "lm": "foreword.draft.lm:LanguageModelDrafter",
    "eagle": "foreword.draft.eagle:EagleDrafter",
    "dflash": "foreword.draft.dflash:DFlashDrafter",
    "dspark": "foreword.draft.dspark:DSparkDrafter",
    "medusa": "foreword.draft.medusa:MedusaDrafter",
    "layers": "foreword.draft.layers:LayersDrafter",
    "quantized": "foreword.draft.quantized:QuantizedDrafter",
    "retrieval": "foreword.draft.retrieval:RetrievalDrafter",
    "tli": "foreword.draft.tli:IntersectionDrafter",
    "slem": "foreword.draft.slem:RetellingDrafter",
    "fuse": "foreword.draft.fuse:FusedDrafter",
    "cascade": "foreword.draft.cascade:CascadeDrafter",
}
"""Name of a method -> where its class is; imported when asked for."""

GROUP = "foreword.methods"
"""The entry points by which other packages add methods."""

TRAINED: dict[str, str] = {
    "LlamaForCausalLMEagle3": "eagle",
    "eagle3": "eagle",
    "DFlashDraftModel": "dflash",
    "dflash": "dflash",
    "Qwen3DSparkModel": "dspark",
    "DSparkDraftModel": "dspark",
    "dspark": "dspark",
    "MedusaModel": "medusa",
}
"""What the config of a trained part calls itself -> the method that it serves."""

WITHOUT_DRAFT, WITH_DRAFT, PLAIN = "ngram", "lm", "none"
"""What runs when a request names no method: without a draft model, with one; and what guesses nothing."""
JOINED = ("suffix", WITH_DRAFT)
"""What is joined where nothing else is named."""
SHARED, RETOLD = "tli", "slem"
"""What drafts with a model of another vocabulary: in the tokens that both have, and in text."""


def method(name: str) -> type[Drafter] | Recipe:
    """The class of a method; of one that joins others, written like a call, `fuse(suffix, lm)`, how to make it.

    Raises UnknownMethod with the nearest names, or InvalidRequest for a name that cannot be read.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequest(f"cannot use method={name!r}: it is no name. Methods: {', '.join(names())}")
    written = re.fullmatch(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", name)
    if written is None:
        raise InvalidRequest(f"cannot read the method {name!r}; write a name, or one that joins others: name(one, two)")
    head, inside = written[1], written[2]
    found = _class(head)
    if issubclass(found, Parts):
        parts = _arguments(inside) if inside is not None else list(JOINED)
        twice = [part for at, part in enumerate(parts) if part in parts[:at]]
        if twice:
            raise InvalidRequest(f"cannot join {twice[0]} twice: both would draft the same tokens. Name it once")
        return Recipe(found, tuple((part, method(part)) for part in parts))
    if inside is not None:
        raise InvalidRequest(f"{head} joins no other methods; leave out ({inside})")
    return found


def installed() -> dict[str, EntryPoint]:
    """The methods of other packages, by name: those that no method of ours has, and of two of a name the first."""
    return {one.name: one for one in reversed(tuple(entry_points(group=GROUP))) if one.name not in METHODS}


def names() -> list[str]:
    """The methods that there are: ours, then those of other packages."""
    return [*METHODS, *sorted(installed())]


def package(entry: EntryPoint) -> str:
    """The distribution that an entry point belongs to, in words."""
    return f"the package {entry.dist.name}" if entry.dist else "an unknown package"


def usual(source: object) -> str:
    """The method that drafts with a source where none is named: a trained part says which it serves."""
    if source is None:
        return WITHOUT_DRAFT
    said = kinds(source) if isinstance(source, str | Path) else ()
    return next((TRAINED[kind] for kind in said if kind in TRAINED), WITH_DRAFT)


def _class(name: str) -> type[Drafter]:
    if name in METHODS:
        module, _, attribute = METHODS[name].partition(":")
        return getattr(import_module(module), attribute)
    entry = installed().get(name)
    if entry is None:
        near = difflib.get_close_matches(name, names(), 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownMethod(f"there is no method {name!r}.{hint} Methods: {', '.join(names())}")
    try:
        found = entry.load()
        why = "" if isinstance(found, type) and issubclass(found, Drafter) else f"{entry.value} is no Drafter"
    except Exception as error:  # noqa: BLE001 - a program of others
        found, why = Drafter, named(error)
    if why:
        raise InvalidRequest(f"cannot use the method {name!r} of {package(entry)}: {why}. Mend or remove that package")
    return found


def _arguments(inside: str) -> list[str]:
    """The parts between the brackets of a call, whose own brackets may hold commas."""
    parts, depth = [""], 0
    for letter in inside:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


__all__ = ["HEAD", "METHODS", "MODEL", "Drafter", "Recipe", "installed", "method", "names", "package"]
