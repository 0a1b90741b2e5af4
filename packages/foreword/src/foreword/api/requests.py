"""From prompts to requests and completions: tokenize, render chats, check."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from foreword.api.detokenizer import Detokenizer
from foreword.api.limits import RequestLimits
from foreword.chats.length import TextLimit, characters
from foreword.chats.prompts import (
    ImagePrompt,
    Prompt,
    Rendered,
    has_images,
    is_list,
    token_ids,
)
from foreword.errors import InvalidRequest, check_unicode
from foreword.model import Model, Tokenizer, need_tokenizer
from foreword.model.architectures import has_vision
from foreword.sampling.noise import seed_of
from foreword.types import Request, SamplingParams, Source, SpeechPrompt

if TYPE_CHECKING:
    from foreword.chats import Message, Options, Tool
    from foreword.model.seq2seq import Seq2Seq
    from foreword.model.vision.processor import Vision
    from foreword.structured.compiler import Grammars

PromptAndParams = tuple["Rendered | SpeechPrompt", SamplingParams]
"""A prompt and its parameters, without texts that a tokenizer has to read."""
SEEDS = 2**63
"""Number of seeds; a seed is in [0, SEEDS)."""


class Requests:
    """Builder of requests for one target. Not thread-safe, because tokenizers are not.

    Without a tokenizer, prompts are token ids alone, and whatever needs text raises
    InvalidRequest.
    """

    def __init__(
        self,
        target: Model,
        tokenizer: Tokenizer | None,
        images: Callable[[], Callable[[object], Any]] | None = None,
        *,
        sanitize: bool = False,
        default: SamplingParams | None = None,
    ) -> None:
        """`images` makes the reader of one chat's images (`image_reader`); without it,
        they are refused. `default`: parameters of requests that give none.

        With `sanitize`, control tokens in chats are plain text where users or tools
        wrote them.
        """
        if sanitize:
            from foreword.chats import check_sanitizing

            check_sanitizing(tokenizer)
        self._target = target
        self._tokenizer = tokenizer
        self._readers = images
        self._sanitize = sanitize
        self._default = default or SamplingParams()
        self._vision: Vision | None = None
        self._ids = count(1)
        self._sees = has_vision(target.hf.config)
        self._compiler: Grammars | None = None
        self._lock = Lock()
        """Held while the compiler is made: any thread may be the first to need it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer. Raises InvalidRequest where there is none."""
        return need_tokenizer(self._tokenizer)

    def compile(self, params: SamplingParams | None) -> None:
        """Compile and cache a grammar, if any. Thread-safe. Raises InvalidRequest."""
        if isinstance(params, SamplingParams) and params.structured:
            self._grammars.compiled(params)

    def compiling(self, params: SamplingParams) -> Future[object]:
        """Compile a grammar, within bounds, in a process that cancelling ends."""
        return cast("Future[object]", self._grammars.submit(params))

    @property
    def _grammars(self) -> "Grammars":
        with self._lock:
            if self._compiler is None:
                from foreword.structured.compiler import Grammars

                target = self._target
                self._compiler = Grammars(self._tokenizer, target.vocab, self._eos)
            return self._compiler

    def read(
        self, prompt: Prompt | SpeechPrompt, params: SamplingParams | None
    ) -> PromptAndParams:
        """Return a prompt and its parameters with texts as token ids: the prompt, the
        prediction and the bad words.

        Raises InvalidRequest for a text that cannot be read.
        """
        params = self._default if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(
                "params must be SamplingParams, or a list with one for each prompt, "
                f"got {params!r}"
            )
        prompt = self.with_images(prompt) if has_images(prompt) else prompt
        if not isinstance(prompt, SpeechPrompt):
            prompt = self._tokens(prompt)
        banned = params.bad_word_ids + self._bad_word_ids(params.bad_words)
        prediction = self._prediction(params.prediction)
        # a copy, as the caller may go on changing the parameters
        return prompt, replace(
            params, bad_words=(), bad_word_ids=banned, prediction=prediction
        )

    def build(
        self, prompt: Rendered | SpeechPrompt, params: SamplingParams
    ) -> list[Request]:
        """Return `params.n` requests for a prompt and parameters from `read`; the first
        has the seed of the parameters, others have seeds made of it and their number.

        Raises InvalidRequest if the prompt or a parameter cannot be served.
        """
        has_media = isinstance(prompt, SpeechPrompt | ImagePrompt)
        tokens = list(prompt.tokens if has_media else prompt)
        rules = self._rules(params.language)
        limits = RequestLimits(self._target)
        limits.check(tokens, params, rules)
        images = None
        material = ()
        if isinstance(prompt, ImagePrompt):
            images = self._sight.rows(prompt)
            material = tuple(prompt.digest)
        features = prompt.features if isinstance(prompt, SpeechPrompt) else None
        source = Source()
        if rules is not None:
            source = Source(tokens)
            tokens = list(rules.start)
            params = rules.applied(params)
        end = None if rules is None else rules.last(params)
        prediction = self._prediction(params.prediction)
        grammar = self._grammars.compiled(params) if params.structured else None
        requests = []
        for number in range(params.n):
            seed = secrets.randbits(63)
            if params.seed is not None:
                seed = seed_of(params.seed, number)
            answer_grammar = None
            if grammar:
                answer_grammar = self._grammars.answer(grammar, params, len(tokens))
            requests.append(
                Request(
                    id=next(self._ids),
                    tokens=list(tokens),
                    prompt=len(tokens),
                    params=params,
                    seed=seed,
                    eos=self._eos,
                    reader=self._reader(tokens, params),
                    prediction=prediction,
                    grammar=answer_grammar,
                    source=source,
                    images=images,
                    features=features,
                    forced_end=end,
                    material=material,
                    adapter=limits.adapter(params.adapter),
                )
            )
        return requests

    def render(
        self,
        messages: "Sequence[Message]",
        tools: "Sequence[Tool] | None" = None,
        template_options: "Options | None" = None,
    ) -> Rendered:
        """Return the prompt of a conversation, with tools that the model may call: its
        token ids; with images, an ImagePrompt.

        A template that knows no tools gets them, and calls and results, as text.
        `template_options` are the template's own. Raises InvalidRequest if a message, a
        tool or an option is wrong, or if the template refuses the messages.
        """
        from foreword import chats

        functions = chats.functions_of(tools)
        options = chats.check_options(template_options)
        turns = chats.conversation(messages, self._image_reader())
        shown: list[Any] | None = [
            dict(function.tool) for function in functions
        ] or None
        apply, encode, templates = self._rendering(chats.images_of(turns))
        if not templates:
            raise InvalidRequest(
                f"cannot render a chat: {self._target.name} has no chat template. Use "
                "generate with a text prompt"
            )
        template = chats.template_of(templates, tools=shown is not None)
        errors = list[Exception]()
        if (
            self._sanitize
            and (marks := chats.marked(turns, self.tokenizer, template)) != turns
        ):
            turns, encode = marks, partial(encode, plain=True)
        if not chats.knows_tools(template):
            turns, shown = chats.instructed(turns, functions), None
        for form in chats.readings(turns, template):
            chats.check_roles(form, template, apply)
            try:
                if characters(form) > self._limit.unchecked:
                    self._limit.check(
                        apply(form, tokenize=False, tools=shown, **options)
                    )
                return encode(
                    chats.in_parts(form, apply) if "type" in template else form,
                    tools=shown,
                    **options,
                )
            except InvalidRequest:
                raise
            except Exception as error:  # noqa: BLE001 - a template can raise anything
                errors.append(error)
        raise InvalidRequest(
            f"cannot render this chat: the chat template of {self._target.name} "
            f"refuses these messages: {errors[0]}"
        ) from errors[0]

    def _tokens(self, prompt: Prompt) -> Rendered:
        if isinstance(prompt, ImagePrompt):
            return prompt
        if self._target.seq2seq is not None and self._target.seq2seq.sound:
            raise InvalidRequest(
                f"cannot complete a text: {self._target.name} reads sound. Use "
                "LLM.transcribe"
            )
        return self.ids(prompt) if isinstance(prompt, str) else token_ids(prompt)

    def ids(self, text: str, *, special: bool = True) -> list[int]:
        """Return the token ids of a text, with special tokens around it or without.

        Raises InvalidRequest for a text that is too long by its characters alone, or no
        Unicode.
        """
        self._limit.check(check_unicode("a prompt", text))
        return list(self.tokenizer(text, add_special_tokens=special)["input_ids"])

    @property
    def _limit(self) -> TextLimit:
        longest = RequestLimits(self._target).longest_held
        return TextLimit(longest, self.tokenizer.get_vocab, self.ids)

    def _reader(self, tokens: list[int], params: SamplingParams) -> Detokenizer | None:
        if self._tokenizer is None and not params.stop:
            return None
        return Detokenizer(
            self.tokenizer,
            tokens,
            params.stop,
            params.skip_special_tokens,
            params.include_stop_str_in_output,
        )

    def with_images(self, prompt: Mapping[str, object]) -> Rendered:
        """Return the prompt of {"prompt": text, "images": list}.

        Raises InvalidRequest if it cannot be served.
        """
        text = prompt.get("prompt")
        images = prompt["images"]
        read = self._image_reader()
        if not isinstance(text, str) or not is_list(images) or not images:
            raise InvalidRequest(
                'cannot read this prompt: with images, it is {"prompt": text, '
                '"images": [image, …]}'
            )
        if read is None:
            raise InvalidRequest(
                "cannot read images here: only text is served. Leave the images out"
            )
        return self._sight.prompt(
            check_unicode("a prompt", text), [read(image) for image in images]
        )

    @property
    def _sight(self) -> "Vision":
        """Return what reads images, loaded on first use, or raise InvalidRequest."""
        if self._vision is None:
            from foreword.model.vision.processor import Vision

            self._vision = Vision.of(self._target, self.tokenizer)
        return self._vision

    def _image_reader(self) -> Callable[[object], Any] | None:
        if self._readers is None:
            return None
        read = self._readers()

        def image(part: object) -> Any:
            # refuses a model that reads text only, before anything is read
            _ = self._sight
            return read(part)

        return image

    def _rendering(
        self, images: int
    ) -> tuple[Callable[..., Any], Callable[..., Rendered], object]:
        """Return how a chat becomes text and tokens, and the chat template."""
        from foreword import chats

        tokenizer: Any = self.tokenizer
        if images or (not tokenizer.chat_template and self._sees):
            sight = self._sight
            return (
                sight.apply,
                partial(chats.encoded_images, partial(sight.encode, images)),
                sight.template,
            )
        encode = partial(chats.encoded, tokenizer, like_processor=self._sees)
        return tokenizer.apply_chat_template, encode, tokenizer.chat_template

    def _rules(self, language: str) -> "Seq2Seq | None":
        """Return the rules of an encoder-decoder that answers in this language."""
        rules, name = self._target.seq2seq, self._target.name
        if rules is not None and rules.sound:
            return None  # speech/rules.py has rules for speech
        if not language:
            return rules
        if rules is None:
            raise InvalidRequest(
                f"cannot answer in language={language!r}: {name} is not an "
                "encoder-decoder. Name the language in the prompt"
            )
        tokenizer: Any = self.tokenizer
        codes = tokenizer.get_added_vocab()  # M2M100 writes __fr__
        token = codes.get(language, codes.get(f"__{language}__"))
        if token is None:
            raise InvalidRequest(
                f"cannot answer in language={language!r}: the tokenizer of {name} has "
                "no such special token. Give a "
                "language code of this tokenizer"
            )
        return replace(rules, start=(rules.start[0], token))

    def _prediction(self, prediction: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(prediction, str) and prediction:
            prediction = tuple(self.ids(prediction, special=False))
        return tuple(token for token in prediction or () if token < self._target.vocab)

    @property
    def _eos(self) -> frozenset[int]:
        token = getattr(self._tokenizer, "eos_token_id", None)
        return self._target.eos or (
            frozenset([token]) if isinstance(token, int) else frozenset()
        )

    def _bad_word_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of every word, with and without a leading space."""
        spellings = [
            spelling for word in words for spelling in (word, " " + word.lstrip())
        ]
        ids = (self.ids(spelling, special=False) for spelling in spellings)
        return tuple(dict.fromkeys(tuple(word) for word in ids if word))


def has_texts(prompt: object, params: object) -> bool:
    """Return whether a tokenizer has to read something of a request."""
    if isinstance(prompt, str) or has_images(prompt):
        return True
    if not isinstance(params, SamplingParams):
        return False
    return bool(
        params.bad_words or (params.prediction and isinstance(params.prediction, str))
    )
