"""Compilation of a schema, expression or grammar for a vocabulary, no tokenizer."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from foreword.errors import InvalidRequest, words
from foreword.structured.matcher import AnswerGrammar
from foreword.structured.rewrite import rewritten
from foreword.structured.schema import check_regex, check_schema

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar

JSON_OBJECT = '{"type": "object"}'
_SOURCE = re.compile(r"^\[[\d:]+\] \S+: ?(?:Check failed: .*? is false: )?")
"""Time and place that xgrammar puts before a message."""


class Vocabulary:
    """The tokens that a grammar may allow, and xgrammar's compiler for them.

    The end of the text is a token of its own, one beyond the vocabulary.
    """

    def __init__(self, pieces: Sequence[bytes], *, spaced: bool) -> None:
        """`pieces`: bytes of each id, if text. `spaced`: texts begin with a space."""
        from xgrammar import GrammarCompiler, TokenizerInfo, VocabType

        self.pieces = list(pieces)
        self.spaced = spaced
        end = len(pieces)
        self.info = TokenizerInfo(
            [*self.pieces, b""],
            VocabType.RAW,
            vocab_size=end + 1,
            stop_token_ids=[end],
            add_prefix_space=spaced,
        )
        self._compiler = GrammarCompiler(self.info, cache_enabled=False)

    def compiled(self, name: str, text: str) -> "CompiledGrammar":
        """Return a compiled form. Raises InvalidRequest if it matches no text."""
        try:
            grammar = self._compiled(name, text)
        except InvalidRequest:
            raise
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            reason = words(RuntimeError(_SOURCE.sub("", str(error))))
            raise InvalidRequest(
                f"cannot follow this {name}: {reason}. Correct it"
            ) from error
        start = self.answer(grammar, frozenset(), 0)
        if start.finished([]) or not start.allowed([], [[]]).any():
            raise InvalidRequest(
                f"cannot follow this {name}: no text follows it, or only the empty "
                "one. Allow more"
            )
        return grammar

    def answer(
        self,
        grammar: "CompiledGrammar",
        ends: frozenset[int],
        prompt: int,
    ) -> AnswerGrammar:
        """Return the state of one answer after a prompt of `prompt` tokens, which
        tokens in `ends` may end.
        """
        from xgrammar import GrammarMatcher

        return AnswerGrammar(GrammarMatcher(grammar), self.pieces, ends, prompt)

    def _compiled(self, name: str, text: str) -> "CompiledGrammar":
        if name == "json_schema":
            schema = rewritten(json.loads(text))
            check_schema(schema)
            text = json.dumps(schema, ensure_ascii=False)
            return self._compiler.compile_json_schema(text, any_whitespace=False)
        if name == "json_object":
            return self._compiler.compile_json_schema(JSON_OBJECT, any_whitespace=False)
        if name == "regex":
            check_regex(text)
            return self._compiler.compile_regex(text)
        if name == "grammar":
            return self._compiler.compile_grammar(text)
        return self._compiler.compile_structural_tag(text)
