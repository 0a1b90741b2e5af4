"""Compilation of schemas, expressions and grammars for one tokenizer, and the checks that refuse impossible ones."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from foreword.errors import InvalidRequest, words
from foreword.model import need_tokenizer
from foreword.structured.matcher import AnswerGrammar
from foreword.structured.schema import check_regex, check_schema
from foreword.types import SamplingParams
from foreword.types.constraint import constraint

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarCompiler

    from foreword.model import Tokenizer

CACHE = 2**26
"""Bytes. Compiled grammars kept for later requests, in each of two caches; one of a usual schema takes some 20 kB."""
JSON_OBJECT = '{"type": "object"}'
_SOURCE = re.compile(r"^\[[\d:]+\] \S+: ?(?:Check failed: .*? is false: )?")
"""Time and place that xgrammar puts before a message."""


class Grammars:
    """Compiler of what answers must follow, for one target, with a cache. Thread-safe.

    Special tokens of the tokenizer are no text, so grammars never allow them; only structural tags may name them.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab: int, eos: frozenset[int]) -> None:
        """`vocab`: tokens of the target; those beyond the tokenizer's are never allowed.  `eos`: its end-of-text.

        Without a tokenizer every grammar is refused.
        """
        self._tokenizer, self._vocab, self._eos = tokenizer, vocab, eos
        self._lock = Lock()
        self._vocabularies: tuple[_Vocabulary, _Vocabulary] | None = None
        """Without special tokens, and with all but the end-of-text tokens."""

    def compiled(self, params: SamplingParams) -> CompiledGrammar | None:
        """Return what the answer to a request must follow, compiled; None if it is free.

        May take seconds. Raises InvalidRequest if it is invalid, if no text follows it, or if xgrammar is missing.
        """
        wanted = constraint(params)
        if wanted is None:
            return None
        name, text = wanted
        with self._lock:
            self._vocabularies = self._vocabularies or self._prepared()
        try:
            grammar = _compiled(self._vocabulary(params).compiler, name, text)
        except InvalidRequest:
            raise
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            raise InvalidRequest(f"cannot follow this {name}: {_reason(error)}. Correct it") from error
        start = self.answer(grammar, replace(params, ignore_eos=True, stop_token_ids=()), 0)
        if start.finished([]) or not start.allowed([], [[]]).any():
            raise InvalidRequest(f"cannot follow this {name}: no text follows it, or only the empty one. Allow more")
        return grammar

    def answer(self, grammar: CompiledGrammar, params: SamplingParams, prompt: int) -> AnswerGrammar:
        """Return the state of one answer that follows a grammar after a prompt of `prompt` tokens."""
        from xgrammar import GrammarMatcher

        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        return AnswerGrammar(GrammarMatcher(grammar), self._vocabulary(params).pieces, ends, prompt)

    def _vocabulary(self, params: SamplingParams) -> _Vocabulary:
        assert self._vocabularies is not None, "compiled() comes first"
        return self._vocabularies[params.structural_tag is not None]

    def _prepared(self) -> tuple[_Vocabulary, _Vocabulary]:
        """Read the tokenizer's vocabulary. The end of the text is a token of its own, one beyond the vocabulary."""
        tokenizer = need_tokenizer(self._tokenizer)
        try:
            from xgrammar import GrammarCompiler, TokenizerInfo, VocabType
        except ImportError as error:
            raise InvalidRequest(
                f"cannot follow a grammar: xgrammar is missing ({error}). Run: pip install 'foreword[structured]'"
            ) from None
        end = self._vocab
        read = TokenizerInfo.from_huggingface(tokenizer, vocab_size=end + 1, stop_token_ids=[end])
        text, spaced = read.decoded_vocab, read.add_prefix_space

        def vocabulary(without: set[int]) -> _Vocabulary:
            pieces: list[Any] = [b"" if token in without else piece for token, piece in enumerate(text)]
            info = TokenizerInfo(
                pieces, VocabType.RAW, vocab_size=end + 1, stop_token_ids=[end], add_prefix_space=spaced
            )
            return _Vocabulary(pieces[:end], GrammarCompiler(info, cache_limit_bytes=CACHE))

        return vocabulary({*self._eos, *tokenizer.all_special_ids}), vocabulary(set(self._eos))


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    pieces: list[bytes]
    """Bytes of each token id, none for tokens that are no text."""
    compiler: GrammarCompiler


def _compiled(compiler: GrammarCompiler, name: str, text: str) -> CompiledGrammar:
    if name == "json_schema":
        check_schema(json.loads(text))
        return compiler.compile_json_schema(text, any_whitespace=False)
    if name == "json_object":
        return compiler.compile_json_schema(JSON_OBJECT, any_whitespace=False)
    if name == "regex":
        check_regex(text)
        return compiler.compile_regex(text)
    if name == "grammar":
        return compiler.compile_grammar(text)
    return compiler.compile_structural_tag(text)


def _reason(error: BaseException) -> str:
    return words(RuntimeError(_SOURCE.sub("", str(error))))
