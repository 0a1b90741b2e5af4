"""JSON that several APIs share: speculation counts, timings, ids, token texts, and the
base of OpenAI's chat completions and completions.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict

from foreword import __version__
from foreword.types import Request, TokenLogprob
from foreword.types.round import REASONS, Reason
from foreword_server.answer import Answer, Choice
from foreword_server.dialects.base import Dialect
from foreword_server.dialects.fields import Sampled
from foreword_server.dialects.translate import Translator
from foreword_server.errors import ApiError
from foreword_server.metrics import why_off
from foreword_server.wire import DONE, event

MILLI = 1000


def speculation(answer: Answer) -> dict[str, Any]:
    """Return the draft counts of an answer, in the shape of vLLM's
    `metrics.speculative_decoding`, and ours.
    """
    stats = [choice.request.stats for choice in answer.choices]
    drafts = sum(one.drafting_rounds for one in stats)
    drafted = sum(one.drafted for one in stats)
    accepted = sum(one.accepted for one in stats)
    rounds, tokens = sum(one.rounds for one in stats), sum(one.tokens for one in stats)
    off = [
        why_off(choice) for choice in answer.choices if not choice.request.stats.drafted
    ]
    histogram = [
        sum(counts) for counts in _columns([one.accepted_counts for one in stats])
    ]
    return {
        "method": answer.call.method,
        "num_spec_steps": drafts,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "draft_acceptance_rate": round(accepted / drafted, 4) if drafted else None,
        "mean_acceptance_length": round(1 + accepted / drafts, 4) if drafts else None,
        "num_accepted_tokens_per_pos": [
            sum(counts) for counts in _columns([one.accepted_at for one in stats])
        ],
        "num_rounds": rounds,
        "tokens_per_pass": round(tokens / rounds, 4) if rounds else None,
        "acceptance_histogram": histogram,
        "undrafted_rounds": dict(
            sum((Counter(one.undrafted) for one in stats), Counter[str]())
        ),
        "tokens_by_method": dict(
            sum((Counter(one.by_method) for one in stats), Counter[str]())
        ),
        "off": {
            "reason": off[0],
            "text": answer.drafting_failed or REASONS.get(cast("Reason", off[0]), ""),
        }
        if off
        else None,
    }


def rounds(answer: Answer, choice: Choice) -> dict[str, Any]:
    """Return the traced rounds of a choice and its recording, if requested."""
    traced = (
        {"rounds": [one.as_json() for one in choice.rounds]}
        if choice.request.params.trace
        else {}
    )
    return traced | recording(answer, choice)


def recording(answer: Answer, choice: Choice) -> dict[str, Any]:
    """Return the recording of a choice without its rounds, which a stream has sent
    already; empty without a trace.
    """
    return (
        {"recording": answer.recording(choice)} if choice.request.params.trace else {}
    )


def _columns(rows: list[list[int]]) -> list[list[int]]:
    """Return the columns of rows of different lengths."""
    return [
        [row[at] for row in rows if at < len(row)]
        for at in range(max(map(len, rows), default=0))
    ]


def timings(answer: Answer) -> dict[str, Any]:
    """Return times and draft counts in the shape of llama.cpp's `timings`."""
    firsts = [choice.first for choice in answer.choices if choice.first is not None]
    if not firsts:
        return {}
    prompt = answer.prompt_tokens - answer.cached_tokens
    prompt_s = max(min(firsts) - answer.arrived, 1e-9)
    predicted_s = max(max(choice.last for choice in answer.choices) - min(firsts), 1e-9)
    count = answer.completion_tokens
    return {
        "cache_n": answer.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": round(MILLI * prompt_s, 3),
        "prompt_per_second": round(prompt / prompt_s, 3),
        "predicted_n": count,
        "predicted_ms": round(MILLI * predicted_s, 3),
        "predicted_per_second": round(count / predicted_s, 3),
        "draft_n": sum(choice.request.stats.drafted for choice in answer.choices),
        "draft_n_accepted": sum(
            choice.request.stats.accepted for choice in answer.choices
        ),
    }


def measured(answer: Answer) -> dict[str, Any]:
    """Return the fields of our own: draft counts and times."""
    return {
        "metrics": {"speculative_decoding": speculation(answer)},
        "timings": timings(answer),
    }


def usage(answer: Answer, *, predicted: bool) -> dict[str, Any]:
    """Return OpenAI's usage block.

    Of a prediction, if the request carried one, the tokens that are in the answer are
    accepted and the others rejected, whichever method drafted them.
    """
    details: dict[str, int] = {"reasoning_tokens": answer.reasoning_tokens}
    if predicted:
        requests = [choice.request for choice in answer.choices]
        accepted = sum(map(_predicted_tokens, requests))
        total = sum(len(request.prediction) for request in requests)
        details |= {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": total - accepted,
        }
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": details,
    }


def _predicted_tokens(request: Request) -> int:
    """Return how many tokens of a request's prediction are in its answer."""
    answered = Counter(request.tokens[request.prompt :])
    return (answered & Counter(request.prediction)).total()


class TokenTexts:
    """The text of single tokens, as log-probabilities list them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, token: int) -> str:
        """Return the text of a token; parts of characters become U+FFFD."""
        return self._tokenizer.decode(
            [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def entry(self, record: TokenLogprob, top: int) -> dict[str, Any]:
        """Return an entry of chat's `logprobs.content`."""
        likeliest = [self._named(token, logprob) for token, logprob in record.top[:top]]
        return {**self._named(record.token, record.logprob), "top_logprobs": likeliest}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text = self(token)
        return {
            "token": text,
            "logprob": max(logprob, -9999.0),
            "bytes": list(text.encode()),
        }


class StreamOptions(BaseModel):
    """What a stream holds beside the text."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_speculation: bool = False


def trace_of(options: StreamOptions | None) -> bool | None:
    """Return whether the rounds are traced; None leaves it to the server."""
    return True if options and options.include_speculation else None


class OpenAIDialect(Dialect):
    """An answer as OpenAI's objects: one whole, or chunks of the same head."""

    WHOLE: ClassVar[str]
    """Kind of a complete answer."""
    CHUNK: ClassVar[str]
    """Kind of the parts of a stream."""
    PREFIX: ClassVar[str]
    """Start of an answer's id."""
    HEAD: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Constant fields of the head."""

    def __init__(
        self, body: Sampled, options: StreamOptions | None, translator: Translator
    ) -> None:
        self._options = options or StreamOptions()
        self._predicted = body.prediction is not None
        self._texts = TokenTexts(translator.tokenizer)
        self._print = f"{translator.name}-{translator.dtype}-foreword-{__version__}"
        """System fingerprint: answers to a seed are equal while it is."""
        self._id = translator.ids.new(self.PREFIX)
        self._base: dict[str, Any] = {}
        """Head of every chunk, once the stream has begun."""
        self._answer: Answer | None = None

    def _head(self, answer: Answer, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": answer.created,
            "model": answer.call.model,
            **self.HEAD,
            "system_fingerprint": self._print,
        }

    def _usage(self, answer: Answer) -> dict[str, Any]:
        return usage(answer, predicted=self._predicted)

    def _whole(self, answer: Answer, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a complete answer of these choices."""
        return {
            **self._head(answer, self.WHOLE),
            "choices": choices,
            "usage": self._usage(answer),
            **measured(answer),
        }

    def _begin(self, answer: Answer) -> None:
        self._answer = answer
        self._base = self._head(answer, self.CHUNK)

    def end(self, answer: Answer) -> bytes:
        """Return the chunk of usage, if asked for, and the end of the stream."""
        options = self._options
        if not (options.include_usage or options.continuous_usage_stats):
            return DONE
        last = {
            **self._base,
            "choices": [],
            "usage": self._usage(answer),
            **measured(answer),
        }
        return event(last) + DONE

    def failed(self, error: ApiError) -> bytes:
        """Return the event of an error in a stream."""
        return event(error.body()) + DONE
