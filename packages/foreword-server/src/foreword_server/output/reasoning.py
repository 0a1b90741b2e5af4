"""Tags around a model's reasoning."""

from dataclasses import dataclass

from foreword.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What begins and what ends reasoning."""

    open: str
    close: str

    def opened_by(self, prompt: str) -> bool:
        """Return whether the text of a prompt ends in the opening tag, so that the
        output begins as reasoning.
        """
        return prompt.rstrip().endswith(self.open)


REASONING = {
    "xml": ReasoningTags("<think>", "</think>"),
    "mistral": ReasoningTags("[THINK]", "[/THINK]"),
}
"""By name: Qwen 3, DeepSeek R1 and most others; Magistral."""


def reasoning_of(template: str | None) -> ReasoningTags | None:
    """Return the tags that a chat template names; None without reasoning."""
    return next(
        (tags for tags in REASONING.values() if template and tags.close in template),
        None,
    )


def named_reasoning(name: str) -> ReasoningTags:
    """Return tags by name. Raises InvalidRequest for an unknown name."""
    if name not in REASONING:
        raise InvalidRequest(
            f"cannot use the reasoning tags {name!r}: unknown. Use one of "
            f"{', '.join(REASONING)}"
        )
    return REASONING[name]
