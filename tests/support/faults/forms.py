"""Faults of grammars and ends."""

from dataclasses import replace

from faults.fault import Fault
from foreword.engine import engine
from foreword.structured.matcher import AnswerGrammar


def mask_of_the_first_row(patch, _llm):
    """Give each draft token's row the mask of the text before all of them."""
    exact = AnswerGrammar.allowed

    def allowed(grammar, tokens, paths):
        rows = exact(grammar, tokens, [[]])
        return rows.expand(len(paths), -1)

    patch.setattr(AnswerGrammar, "allowed", allowed)


def end_unnoticed(patch, _llm):
    """Keep the accepted tokens after the end of the text."""
    exact = engine.commit

    def commit(request, tokens, origins, measured, drafted):
        delta = exact(request, tokens, origins, measured, drafted)
        if delta.finish_reason == "length":
            return delta
        request.tokens += tokens[len(delta.tokens) :]
        return replace(delta, tokens=tuple(tokens))

    patch.setattr(engine, "commit", commit)


FORM_FAULTS: dict[str, Fault] = {
    "the grammar's mask of the first row for all": Fault(mask_of_the_first_row),
    "accepted tokens kept behind the end": Fault(end_unnoticed),
}
