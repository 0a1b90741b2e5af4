"""Whether a row has the same bits in a forward of any size: `bits.py DEVICE SHAPE FILE`.

A draft of any length leaves the text of bfloat16 as it is where every row of a forward
has the bits that it has alone.
"""

import json
import sys
from pathlib import Path

from foreword.model import Model
from foreword_lab.bench.lineup import weights
from foreword_lab.certify.bits import Reading, in_chunks, in_trees, several

LONGEST = 64
"""Draft tokens."""
ROWS = 2 * (LONGEST + 1)
"""Tokens of the text."""
IDS = [1, 2, 3, 4]


def main(device: str, shape: str, file: str) -> None:
    """Read a text alone and in other forwards, and write where rows differ."""
    source = weights(None, None, "auto", None if shape == "family" else shape, device=device)
    model = Model(source.load(), source.name)
    text = [7 + 31 * place % 4000 for place in range(ROWS)]
    (alone,) = in_chunks(1)(model, IDS, text)
    readings: dict[str, Reading] = {
        f"{drafted} draft tokens": in_chunks(drafted + 1)
        for drafted in range(1, LONGEST + 1)
    } | {"four texts": several, "trees": in_trees}
    found = {"target": source.name, "backend": model.capability.backend, "rows": ROWS}
    differing = {}
    for name, read in readings.items():
        rows = [
            number
            for logits in read(model, IDS, text)
            for number, row in enumerate(logits)
            if not (row == alone[number]).all()
        ]
        if rows:
            differing[name] = len(rows)
    found["differing_rows"] = differing
    Path(file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
