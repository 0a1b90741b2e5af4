"""Records of what Foreword generates, for `make freeze` and `make frozen`."""

import json
from hashlib import blake2b


def hashed(value: object) -> str:
    """Return a short hash of the value's JSON."""
    text = json.dumps(value, sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()
