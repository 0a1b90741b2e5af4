"""`foreword quantize`: a quantized checkpoint, as safetensors or as a GGUF file."""

import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from foreword.cli.common import early, options, runtime
from foreword.cli.common.progress import LineProgress
from foreword.files import atomic_file, room

Form = Literal["int4", "int8", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
FOLDERS = ("int4", "int8")
"""Forms that are a folder; others are a file."""

To = Annotated[
    Form,
    options.option(
        None,
        "--to",
        "int4 or int8: a folder in the form of compressed-tensors; Q…: a GGUF file "
        "(Llama).",
    ),
]
Out = Annotated[
    Path,
    options.option(None, "--out -o", "New folder or file.", "PATH", early.new),
]


def quantize(
    model: options.ModelArgument = None,
    *,
    target: options.ModelName = None,
    to: To,
    out: Out,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a model with weights of 2 to 8 bits, which `foreword` and other engines
    load.
    """
    if to not in FOLDERS:
        early.file(out)  # a folder is created with its parents, a file is not
    from foreword import bundled
    from foreword.model.quantized.write import write

    source = early.either(model, target, "--model") or str(bundled.target())
    if to in FOLDERS:
        done = write(
            source, out, to, trust_remote_code=trust_remote_code, note=runtime.note
        )
        facts: dict[str, Any] = {
            "matrices": done.matrices,
            "bytes_before": done.before,
            "bytes": done.after,
        }
    else:
        facts = _gguf(source, out, to, trusted=trust_remote_code)
    if as_json:
        sys.stdout.write(json.dumps({"path": str(out), "form": to, **facts}) + "\n")
        return
    runtime.note(
        f"{out}: {facts['bytes'] / 1e6:,.1f} MB, of {facts['bytes_before'] / 1e6:,.1f} "
        "MB in bfloat16"
    )
    sys.stdout.write(f"foreword generate -m {shlex.quote(str(out))} …\n")


def _gguf(source: str, out: Path, kind: str, *, trusted: bool) -> dict[str, Any]:
    import torch

    from foreword.model import load_tokenizer
    from foreword.model.loading.config import read_config
    from foreword.model.loading.load import load_weights
    from foreword_train.gguf.source import source as convertible
    from foreword_train.gguf.writer import write

    runtime.note(f"loading {source}")
    config = read_config(source, trust_remote_code=trusted)
    hf = load_weights(source, config, torch.bfloat16, trust_remote_code=trusted)
    before = sum(parameter.nbytes for parameter in hf.parameters())
    tokenizer = load_tokenizer(source, trust_remote_code=trusted)
    model = convertible(source, hf, tokenizer)
    runtime.note(f"writing {out}")
    with LineProgress() as progress, room(out), atomic_file(out) as partial:
        kinds = Counter(write(model, partial, kind, progress))
    return {"bytes_before": before, "bytes": out.stat().st_size, "tensors": dict(kinds)}
