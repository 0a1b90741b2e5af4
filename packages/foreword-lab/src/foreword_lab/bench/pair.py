"""A target and its drafter, named by options and loaded to be measured."""

from dataclasses import dataclass

from foreword import bundled
from foreword.api.llm import LLM
from foreword.api.session import Session
from foreword.budget import FixedBudget
from foreword.draft import default_method as usual_method
from foreword.draft import method as find_method
from foreword.draft.ensemble.auto import AutoDrafter
from foreword.draft.ensemble.recipe import Loader
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest
from foreword.model.seq2seq import check_decoder_only
from foreword.options import LoadingOptions
from foreword.registry import PLAIN
from foreword.shared import Shared
from foreword.verify import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions(LoadingOptions):
    """A target and its drafter."""

    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    draft: str | None = None
    method: str | None = None

    @property
    def draft_source(self) -> str | None:
        """What to draft with: the bundled draft model, unless something is named."""
        if self.draft is None and self.target is None and self.method is None:
            return str(bundled.draft())
        return self.draft or None

    @property
    def method_name(self) -> str:
        """The drafting method, by default the usual one for the draft."""
        return self.method or usual_method(self.draft_source, self.target)


def load_pair(options: PairOptions, rule: Rule) -> Session:
    """Return a session of the target with this drafter, which must load: LLM itself
    falls back to plain decoding.

    Raises ModelError or InvalidRequest if it cannot be loaded, or chooses among others.
    """
    draft = options.draft_source
    method = options.method_name
    kind = find_method(method)
    if kind.about.needs and draft is None:
        raise InvalidRequest(
            f"cannot run method {method!r}: it needs {kind.about.takes}. Name one"
        )
    how = {
        name: getattr(options, name)
        for name in ("dtype", "device", "trust_remote_code")
    }
    llm = LLM(options.target, method=PLAIN, **how)
    check_decoder_only(llm.target.seq2seq, llm.target.name, "measure drafting")
    loader = Loader(method, kind, Shared(), fallback=options.method is None)
    drafter = loader.load(draft, llm.target, llm.tokenizer)
    if isinstance(drafter, AutoDrafter):
        raise InvalidRequest(
            f"cannot measure the method {method!r}: it chooses among several, with "
            "budgets of their own. Name one of them"
        )
    engine = Engine(llm.target, drafter, rule, FixedBudget(1), Scheduler())
    return llm.session.beside(engine)
