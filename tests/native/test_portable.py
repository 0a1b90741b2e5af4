"""`portable=True`: logits and texts have the same bits with every instruction set."""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import starter
from command import printed
from foreword import LLM, SamplingParams
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model, Read
from foreword.model.executors.native.angles import turns
from foreword.native.cpu import cpuinfo
from grids import NEEDS_C, slow_case
from tiny_models import FAMILIES, build

pytestmark = NEEDS_C
PROGRAM = Path(__file__).with_name("portable.py")
SETS = {
    "avx2": ("-march=x86-64-v3", "avx2 fma f16c"),
    "avx2 with products of bytes": (
        "-march=x86-64-v3 -mavxvnni",
        "avx2 fma f16c avx_vnni",
    ),
    "avx512 without bfloat16": (
        "-march=x86-64-v4",
        "avx512f avx512bw avx512vl avx512dq avx512cd",
    ),
}
"""Instruction sets beside the processor's own: compiler flags, and what it must have."""
FEW = ("llama-gqa", "qwen3", "gemma2", "mixtral")
TEXTS = dict.fromkeys((None, "int8"), "e8c1db019cad546b")
TEXTS["int4"] = "9629afa7ee1811b6"
"""Hashes of texts of the models of the tests, which every machine must write."""


def hashes(flags: str, names: Sequence[str]) -> dict[str, str | None]:
    """What portable.py prints; -O1 compiles fast, and optimization changes no bit."""
    own = {
        "FOREWORD_CFLAGS": f"-O1 {flags}",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return json.loads(printed("-W", "ignore", str(PROGRAM), *names, **own))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "names"), [("avx2", FEW), *(slow_case(kind, [*FAMILIES]) for kind in SETS)]
)
def test_logits_are_equal_with_every_instruction_set(kind, names):
    flags, needed = SETS[kind]
    lines = (line.split() for line in cpuinfo() if line.startswith("flags"))
    if not set(needed.split()) <= set(next(lines, [])):
        pytest.skip(f"the processor lacks {needed}")
    own, other = hashes("", names), hashes(flags, names)
    assert own == other
    assert sum(found is not None for found in own.values()) > 2 * len(names)


def text(weights: str | None, method: str) -> tuple[str, int]:
    """The hash of a sampled text, and its accepted draft tokens."""
    drafting = {} if method == "none" else {"draft": str(starter.draft()), "nodes": 4}
    params = SamplingParams(
        temperature=0.8, seed=3, max_tokens=80, ignore_eos=True, trace=True
    )
    with LLM(
        str(starter.target()), weights=weights, method=method, portable=True, **drafting
    ) as llm:
        (answer,) = llm.generate("The history of the bridge", params)
    digest = hashlib.sha256(str(answer.tokens).encode()).hexdigest()
    return digest[:16], sum(len(one.accepted) for one in answer.rounds or ())


@pytest.mark.parametrize("weights", TEXTS)
def test_texts_are_what_every_machine_writes(weights):
    plain, _ = text(weights, "none")
    drafted, accepted = text(weights, "lm")
    assert plain == drafted == TEXTS[weights]
    assert accepted > 10


def test_turns_are_those_of_double_precision():
    angles = torch.cat([torch.linspace(-30, 30, 4001), torch.arange(0, 131072, 997.0)])
    cos, sin = turns(angles)
    exact = angles.double()
    assert torch.equal(cos, exact.cos().float())
    assert torch.equal(sin, exact.sin().float())


def test_portable_scores_are_close_to_the_usual_ones():
    usual, other = Model(build("llama").bfloat16()), Model(build("llama").bfloat16())
    assert other.make_portable() is other
    assert other.forms == {"portable": True}
    scores = []
    for model in (usual, other):
        model.open(0, 40)
        scores.append(model.read([Read(0, 0, list(range(5, 45)), keep=40)]).clone())
    torch.testing.assert_close(*scores, rtol=0, atol=0.1)


def test_other_backends_are_refused():
    with pytest.raises(ModelError, match="only backend 'native' computes the same"):
        Model(build("llama")).make_portable()
    with pytest.raises(InvalidRequest, match="cannot use portable='True'"):
        LLM(str(starter.target()), portable=True, backend="pool")
