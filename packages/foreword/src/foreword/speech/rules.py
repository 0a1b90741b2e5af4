"""Rules of a speech model's text: the tokens it begins with, and the tokens that may
not follow.

They follow `WhisperForConditionalGeneration.generate`; its processor of timestamps is
used as it is.
"""

from typing import Any

from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model, Tokenizer
from foreword.sampling.suppressed import Suppressed
from foreword.speech.options import SpeechOptions
from foreword.types import LogitsProcessor


class SpeechRules:
    """The rules of one model, read from its generation settings."""

    def __init__(self, model: Model) -> None:
        """Raises ModelError where the settings name tokens that the model lacks."""
        self._settings = model.hf.generation_config
        self._config = model.hf.config
        self._name = model.name
        self.vocab, self.eos = model.vocab, model.eos
        self._no_timestamps: int | None = self._get("no_timestamps_token_id")
        self.timestamp_begin: int = (
            model.vocab + 1 if self._no_timestamps is None else self._no_timestamps + 1
        )
        """Id of the first timestamp, 0.00 s; above all ids where there are none."""
        self.languages: dict[str, int] = self._get("lang_to_id") or {}
        """Ids of the languages, by names as <|en|>."""
        named = [
            *(self._get("suppress_tokens") or ()),
            *(self._get("begin_suppress_tokens") or ()),
        ]
        named += [*self.languages.values(), *(self._get("task_to_id") or {}).values()]
        if wrong := [token for token in named if not 0 <= token < model.vocab]:
            raise ModelError(
                f"cannot transcribe with {model.name}: its generation settings name "
                f"the ids {wrong[:5]}, and it has {model.vocab} tokens. Correct "
                "generation_config.json"
            )

    @property
    def no_speech(self) -> int:
        """Id of the token that stands for silence."""
        if self._no_timestamps is None:
            raise InvalidRequest(
                f"cannot detect silence: {self._unset('no_timestamps_token_id')}"
            )
        return self._no_timestamps - 1

    def start(
        self,
        options: SpeechOptions,
        timestamps: bool,
    ) -> list[int | None]:
        """Return the tokens before the text; None stands for the language, where it
        must be detected.
        """
        if self._get("is_multilingual") is False and (options.language or options.task):
            raise InvalidRequest(
                f"cannot set 'language' or 'task': {self._name} knows English only. "
                "Leave them out"
            )
        if timestamps and self._no_timestamps is None:
            raise InvalidRequest(
                f"cannot write timestamps: {self._unset('no_timestamps_token_id')}"
            )
        task = options.task or self._get("task")
        language = options.language or self._get("language")
        start: list[int | None] = [self._settings.decoder_start_token_id]
        if task is None and language is None:
            start += self._forced()
        known = len(start) > 1 and start[1] is not None
        if language is not None:
            start[1:2] = [self._language(language)]
        elif self.languages and not known:
            start[1:2] = [None]
        elif not known:
            start = [token for token in start if token is not None]
        if task is not None:
            start.append(self._task(task))
        elif (
            language is not None
            and (tasks := self._get("task_to_id"))
            and not {*tasks.values()} & {*start}
        ):
            start.append(tasks["transcribe"])
        if start[-1] == self._no_timestamps and timestamps:
            start.pop()
        elif (
            not timestamps
            and self._no_timestamps is not None
            and start[-1] != self._no_timestamps
        ):
            start.append(self._no_timestamps)
        return start

    def processors(
        self,
        begin: int,
        timestamps: bool,
    ) -> tuple[LogitsProcessor, ...]:
        """Return the processors of a text whose first token is the `begin`-th that the
        decoder reads.
        """
        rules: list[Any] = []
        if begin_ids := self._get("begin_suppress_tokens"):
            rules.append(Suppressed(begin_ids, begin))
        if ids := self._get("suppress_tokens"):
            rules.append(Suppressed(ids))
        if timestamps:
            rules.append(WhisperTimeStampLogitsProcessor(self._settings, begin))
        return tuple(rules)

    def prompt(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens of a text that the model takes as written before; empty for
        an empty text.
        """
        if not text.strip():
            return []
        ids = list(tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"])
        special = {*tokenizer.all_special_ids}
        wrong = [one for one in ids if one in special or one >= self.timestamp_begin]
        if wrong:
            raise InvalidRequest(
                f"prompt must be text, and holds {tokenizer.decode(wrong[:1])!r}. "
                "Leave it out"
            )
        return ids

    @property
    def previous(self) -> list[int]:
        """The token before text that was written before, if the model has one."""
        token = self._get("prev_sot_token_id")
        suppressed = self._get("suppress_tokens") or []
        if token is None and len(suppressed) >= 2:
            token = suppressed[-2]  # as in the settings of older checkpoints
        return [] if token is None else [token]

    def code(self, token: int) -> str | None:
        """Return the code of a language's token."""
        return next(
            (name.strip("<|>") for name, one in self.languages.items() if one == token),
            None,
        )

    def _get(self, name: str) -> Any:
        return getattr(self._settings, name, None)

    def _forced(self) -> list[int | None]:
        """Return the first tokens that older settings force at positions 1, 2, …."""
        forced = (
            self._get("forced_decoder_ids")
            or getattr(self._config, "forced_decoder_ids", None)
            or []
        )
        if [place for place, _ in forced] != list(range(1, len(forced) + 1)):
            raise ModelError(
                f"cannot transcribe with {self._name}: forced_decoder_ids of its "
                "generation settings leave out a position. Remove them, and give "
                "'language' and 'task'"
            )
        return [token for _, token in forced]

    def _language(self, language: str) -> int:
        if not self.languages:
            raise InvalidRequest(f"cannot set 'language': {self._unset('lang_to_id')}")
        name = language.lower()
        name = (
            name
            if name in self.languages
            else f"<|{TO_LANGUAGE_CODE.get(name, name)}|>"
        )
        if name not in self.languages:
            codes = ", ".join(sorted(one.strip("<|>") for one in self.languages))
            raise InvalidRequest(
                f"cannot set 'language': {self._name} has no language {language!r}. "
                f"Give one of {codes}"
            )
        return self.languages[name]

    def _task(self, task: str) -> int:
        tasks = self._get("task_to_id") or {}
        if task not in tasks:
            raise InvalidRequest(f"cannot set 'task': {self._unset('task_to_id')}")
        return tasks[task]

    def _unset(self, name: str) -> str:
        return (
            f"the generation settings of {self._name} lack {name}. Copy its "
            "generation_config.json again"
        )
