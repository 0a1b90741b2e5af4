"""One-line summary of an LLM: model, drafts, chat template and default sampling."""

from pathlib import PurePath

from foreword.api.llm import LLM
from foreword.model.loading.load import GENERATION
from foreword.model.vision.processor import reads_images
from foreword.types import SamplingParams


def summary(llm: LLM, *, bundled: bool = False) -> str:
    """Return an LLM in one line for a person; `bundled`: its target is bundled."""
    target = llm.target
    name = PurePath(target.name).name
    is_file = name.lower().endswith(".gguf")
    template = "no chat template"
    if llm.tokenizer.chat_template or reads_images(target):
        checkpoint = "file" if is_file else "folder"
        template = f"chat template of the {checkpoint}"
    parts = [
        "the bundled model" if bundled else name,
        f"drafting with {_drafter(llm)}",
        template,
        _sampling(llm, "GGUF metadata" if is_file else GENERATION),
    ]
    return ", ".join(parts)


def _drafter(llm: LLM) -> str:
    """Return the method, with the names of its drafts."""
    label = llm.session.speculators.label(llm.method)
    method, _, sources = label.partition(" from ")
    if not sources:
        return method
    paths = sources.split(" and ")
    drafts = ", ".join(PurePath(path).name for path in paths)
    return f"{method} ({drafts})"


def _sampling(llm: LLM, source: str) -> str:
    """Return the temperature and the other values that change a text, in words;
    `source` is where the owner of the model advises some.
    """
    plain = SamplingParams()
    values = {"temperature": 1.0, **llm.sampling}
    chosen, advised = list[str](), list[str]()
    for name, value in values.items():
        if name != "temperature" and value == getattr(plain, name):
            continue
        text = f"{name.replace('_', '-')} {value:g}"
        (advised if name in llm.advised else chosen).append(text)
    shown = [", ".join(chosen)] if chosen else []
    if advised:
        shown.append(f"{', '.join(advised)} ({source})")
    return "; ".join(shown)
