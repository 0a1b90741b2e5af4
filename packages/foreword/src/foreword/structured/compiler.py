"""Compilation of schemas, expressions and grammars for one tokenizer: at once, or in
turns for many clients.
"""

from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from foreword.errors import InvalidRequest
from foreword.model import Tokenizer, need_tokenizer
from foreword.shared import Shared
from foreword.structured.forms import Vocabulary
from foreword.structured.matcher import AnswerGrammar
from foreword.structured.queue import CompileQueue, Form, Vocabularies
from foreword.types import SamplingParams
from foreword.types.constraint import constraint

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar


CACHE = 2**26
"""Bytes of compiled grammars kept; one of a usual schema takes some 20 kB."""


class Grammars:
    """Compiler of what answers must follow, for one target, with a cache. Thread-safe.

    Special tokens of the tokenizer are no text, so grammars never allow them; only
    structural tags may name them.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, vocab: int, eos: frozenset[int]
    ) -> None:
        """`vocab`: tokens of the target; those beyond the tokenizer's are never
        allowed. `eos`: its end-of-text.

        Without a tokenizer every grammar is refused.
        """
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._eos = eos
        self._lock = Lock()
        self._cache: Shared[CompiledGrammar] = Shared(
            CACHE, lambda grammar: grammar.memory_size_bytes
        )
        self._vocabularies: Vocabularies | None = None
        self._queue = CompileQueue()

    def compiled(self, params: SamplingParams) -> "CompiledGrammar | None":
        """Return the compiled grammar of a request's answer; None if the answer is
        free.

        May take long, and cannot be interrupted. Raises InvalidRequest if it is
        invalid, if no text follows it, or if xgrammar is missing.
        """
        form = _form(params)
        if form is None:
            return None
        return self._cache.find(form) or self._keep(
            form, self._prepared()[form.tagged].compiled(form.name, form.text)
        )

    def submit(self, params: SamplingParams) -> "Future[CompiledGrammar]":
        """Compile what an answer must follow in a process of its own, within bounds;
        cancelling the future stops it.

        A request finds the result for as long as it is held, and some time longer.
        `params` must name something.
        """
        form, done = _form(params), Future["CompiledGrammar"]()
        assert form is not None
        grammar = self._cache.find(form)
        if grammar is not None:
            done.set_result(grammar)
            return done
        return self._queue.submit(
            params.tenant, form, self._prepared, partial(self._keep, form)
        )

    def answer(
        self, grammar: "CompiledGrammar", params: SamplingParams, prompt: int
    ) -> AnswerGrammar:
        """Return the state of an answer with a grammar after `prompt` tokens."""
        ends = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else self._eos
        )
        return self._prepared()[params.structural_tag is not None].answer(
            grammar, ends, prompt
        )

    def _keep(self, form: Form, grammar: "CompiledGrammar") -> "CompiledGrammar":
        with self._lock:
            return self._cache.get(form, lambda: grammar)

    def _prepared(self) -> Vocabularies:
        """Read the tokenizer's vocabulary, once: without special tokens, and with all
        but the end-of-text tokens.
        """
        with self._lock:
            self._vocabularies = self._vocabularies or self._read()
            return self._vocabularies

    def _read(self) -> Vocabularies:
        tokenizer = need_tokenizer(self._tokenizer)
        try:
            from xgrammar import TokenizerInfo
        except ImportError as error:
            raise InvalidRequest(
                f"cannot follow a grammar: xgrammar is missing ({error}). Run: pip "
                "install 'foreword[structured]'"
            ) from None
        end = self._vocab
        read = TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=end + 1, stop_token_ids=[end]
        )
        text, spaced = read.decoded_vocab[:end], read.add_prefix_space

        def vocabulary(without: set[int]) -> Vocabulary:
            return Vocabulary(
                [
                    b"" if token in without else piece
                    for token, piece in enumerate(text)
                ],
                spaced=spaced,
            )

        return vocabulary({*self._eos, *tokenizer.all_special_ids}), vocabulary(
            set(self._eos)
        )


def _form(params: SamplingParams) -> Form | None:
    pair = constraint(params)
    return None if pair is None else Form(params.structural_tag is not None, *pair)
