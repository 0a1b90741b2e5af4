"""PROPOSE: one file per method.

This registry is the only place outside a method's own file that names it.
"""

from __future__ import annotations

import difflib
import re
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from foreword.draft.base import HEAD, MODEL, Drafter
from foreword.draft.ensemble.base import EnsembleDrafter
from foreword.draft.ensemble.recipe import MethodSpec
from foreword.errors import InvalidRequest, UnknownMethod, named
from foreword.model.loading.checkpoint import kinds
from foreword.types.method import spelled

METHODS: dict[str, str] = {
    "none": "foreword.draft.none:NoDrafter",
    "ngram": "foreword.draft.lookup.ngram:NgramDrafter",
    "suffix": "foreword.draft.lookup.suffix:SuffixDrafter",
    "predicted": "foreword.draft.lookup.predicted:PredictedDrafter",
    "recycle": "foreword.draft.lookup.recycle:RecyclingDrafter",
    "lookahead": "foreword.draft.lookup.lookahead:LookaheadDrafter",
    "lm": "foreword.draft.lm:LanguageModelDrafter",
    "eagle": "foreword.draft.heads.eagle:EagleDrafter",
    "dflash": "foreword.draft.heads.dflash:DFlashDrafter",
    "dspark": "foreword.draft.heads.dspark:DSparkDrafter",
    "medusa": "foreword.draft.heads.medusa:MedusaDrafter",
    "layers": "foreword.draft.self_speculative.layers:LayersDrafter",
    "quantized": "foreword.draft.self_speculative.quantized:QuantizedDrafter",
    "retrieval": "foreword.draft.lookup.retrieval:RetrievalDrafter",
    "tli": "foreword.draft.cross_vocab.tli:IntersectionDrafter",
    "slem": "foreword.draft.cross_vocab.slem:StringMatchDrafter",
    "fuse": "foreword.draft.ensemble.fuse:FusedDrafter",
    "cascade": "foreword.draft.ensemble.cascade:CascadeDrafter",
}
"""Name of a method -> module and class; imported on first use."""

GROUP = "foreword.methods"
"""Entry point group through which other packages add methods."""

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
"""Kind of a trained head, from its config -> its method."""

WITHOUT_DRAFT = "ngram"
WITH_DRAFT = "lm"
PLAIN = "none"
"""Default methods without and with a draft model, and the method without
draft tokens.
"""
JOINED = ("suffix", WITH_DRAFT)
"""Default members of an ensemble."""
SHARED, RETOLD = "tli", "slem"
"""Methods for a draft model of another vocabulary: by shared tokens, and by text."""


def method(name: str) -> type[Drafter] | MethodSpec:
    """Return the class of a method, or the spec of an ensemble, written like a call:
    `fuse(suffix, lm)`.

    Raises UnknownMethod with the nearest names, or InvalidRequest for a name that
    cannot be read.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequest(
            f"cannot use method={name!r}: it is no name. Methods: {', '.join(names())}"
        )
    name = spelled(name)
    match = re.fullmatch(r"([\w-]+)(?:\((.*)\))?", name)
    if match is None:
        raise InvalidRequest(
            f"cannot read the method {name!r}: it is no name. Write one, or an "
            "ensemble: name(one, two)"
        )
    head, inside = match[1], match[2]
    kind = _class(head)
    if issubclass(kind, EnsembleDrafter):
        members = _arguments(inside) if inside is not None else list(JOINED)
        twice = [member for at, member in enumerate(members) if member in members[:at]]
        if twice:
            raise InvalidRequest(
                f"cannot join {twice[0]} twice: both would draft the same tokens. Name "
                "it once"
            )
        return MethodSpec(kind, tuple((member, method(member)) for member in members))
    if inside is not None:
        raise InvalidRequest(
            f"cannot use the method {name!r}: {head} joins no other methods. Leave out "
            f"({inside})"
        )
    return kind


def installed() -> dict[str, EntryPoint]:
    """Return the methods of other packages by name, without those of ours; of two with
    one name, the first.
    """
    return {
        one.name: one
        for one in reversed(tuple(entry_points(group=GROUP)))
        if one.name not in METHODS
    }


def names() -> list[str]:
    """Return the names of all methods: ours, then those of other packages."""
    return [*METHODS, *sorted(installed())]


def package(entry: EntryPoint) -> str:
    """Return the package of an entry point, in words."""
    return f"the package {entry.dist.name}" if entry.dist else "an unknown package"


def check_seq2seq(name: str, target: str) -> None:
    """Raise InvalidRequest for a method that cannot draft for the encoder-decoder
    called `target`.
    """
    if not method(name).seq2seq:
        usable = ", ".join(one for one in METHODS if method(one).seq2seq)
        raise InvalidRequest(
            f"cannot use method {name!r}: {target} is an encoder-decoder. Use one of "
            f"{usable}"
        )


def usual(source: object) -> str:
    """Return the default method for a source: the config of a trained head names its
    own.
    """
    if source is None:
        return WITHOUT_DRAFT
    declared = kinds(source) if isinstance(source, str | Path) else ()
    return next((TRAINED[kind] for kind in declared if kind in TRAINED), WITH_DRAFT)


def _class(name: str) -> type[Drafter]:
    if name in METHODS:
        module, _, attribute = METHODS[name].partition(":")
        return getattr(import_module(module), attribute)
    entry = installed().get(name)
    if entry is None:
        near = difflib.get_close_matches(name, names(), 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownMethod(
            f"cannot draft: there is no method {name!r}.{hint} Methods: "
            f"{', '.join(names())}"
        )
    try:
        kind = entry.load()
        reason = (
            ""
            if isinstance(kind, type) and issubclass(kind, Drafter)
            else f"{entry.value} is no Drafter"
        )
    except Exception as error:  # noqa: BLE001 - code of another package
        kind, reason = Drafter, named(error)
    if reason:
        raise InvalidRequest(
            f"cannot use the method {name!r} of {package(entry)}: {reason}. Update or "
            "remove that package"
        )
    return kind


def _arguments(inside: str) -> list[str]:
    """Split the arguments of a call at its top-level commas."""
    arguments, depth = [""], 0
    for letter in inside:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            arguments.append("")
        else:
            arguments[-1] += letter
    return [argument.strip() for argument in arguments]


__all__ = [
    "HEAD",
    "METHODS",
    "MODEL",
    "Drafter",
    "MethodSpec",
    "installed",
    "method",
    "names",
    "package",
    "spelled",
]
