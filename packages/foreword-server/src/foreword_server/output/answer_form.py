"""The JSON that an answer must be, as a part of a grammar that allows calls too."""

import json
from collections.abc import Mapping
from typing import Any

from foreword.errors import InvalidRequest
from foreword.structured.rewrite import rewritten
from foreword.structured.schema import check_schema
from foreword_server.output.formats.base import Tag
from foreword_server.output.formats.grammar import json_text


def answer_form(sampling: Mapping[str, Any]) -> Tag | None:
    """Return the format, for xgrammar's structural tags, of the JSON that sampling
    parameters ask for; None if they ask for none.

    Raises InvalidRequest for a schema that cannot be followed.
    """
    if sampling.get("json_object"):
        return json_text({"type": "object"})
    value = sampling.get("json_schema")
    if not value:
        return None
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"cannot follow this json_schema: it is not JSON: {error}. Correct it"
        ) from error
    schema = rewritten(schema)
    check_schema(schema)
    return json_text(schema)
