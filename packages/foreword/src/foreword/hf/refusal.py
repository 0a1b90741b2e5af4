"""A reason not to serve a call of transformers' `generate`, as the error or the warning
that gives it.
"""

from dataclasses import dataclass

from foreword.errors import InvalidRequest

LEAVE_OUT = "Leave it out, or call generate without foreword"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a call is not served."""

    subject: str
    reason: str
    fix: str = LEAVE_OUT
    assisted_differs: bool = False
    """Whether transformers' assisted decoding gives other text than its plain one."""

    @property
    def error(self) -> InvalidRequest:
        """Return the error for a call that named foreword."""
        return InvalidRequest(f"cannot serve {self.subject}: {self.reason}. {self.fix}")

    def warning(self, outcome: str) -> str:
        """Return the warning for a call that goes to transformers."""
        return f"{self.subject}: {self.reason}; {outcome}"


def not_a_call(value: object) -> InvalidRequest:
    """Return the error of a call that transformers did not make."""
    return InvalidRequest(
        f"cannot generate from {type(value).__name__} alone: foreword.generate is what "
        "transformers' generate(custom_generate=…) calls. Use "
        "foreword.LLM().generate(prompt)"
    )
