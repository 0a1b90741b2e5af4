"""Whether a row has the same bits in a forward of any size: `bits.py DEVICE SHAPE`.

Then drafts of any length leave the text as it is. The result goes to the file RESULT.
"""

import json
import os
import sys
from pathlib import Path

from foreword.model import Model
from foreword_lab.bench.lineup import weights
from foreword_lab.certify.bits import in_chunks, in_trees, several

LONGEST = 64
"""Draft tokens."""
IDS = [1, 2, 3, 4]
"""Sequences."""


def main(device: str, shape: str) -> None:
    """Read a text alone and in other forwards, and count the rows that differ."""
    enlarged = None if shape == "family" else shape
    source = weights(None, None, "auto", enlarged, device=device)
    model = Model(source.load(), source.name)
    text = [7 + 31 * place % 4000 for place in range(2 * (LONGEST + 1))]
    (alone,) = in_chunks(1)(model, IDS, text)
    readings = {
        f"{count} draft tokens": in_chunks(count + 1) for count in range(1, LONGEST + 1)
    }
    readings |= {"four texts": several, "trees": in_trees}
    differing = {
        name: sum(
            int((logits != alone[: len(logits)]).any(-1).sum())
            for logits in read(model, IDS, text)
        )
        for name, read in readings.items()
    }
    report = {
        "target": source.name,
        "backend": model.capability.backend,
        "rows": len(text),
    }
    report["differing_rows"] = differing
    Path(os.environ["RESULT"]).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
