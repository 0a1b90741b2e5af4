"""A layer of multi-token prediction computes in C what it computes in torch."""

import copy
from collections.abc import Iterator

import pytest
import torch

from drafters import check_row_bits, scores
from foreword.draft.heads.reader import HeadExecutor, StateReader
from foreword.draft.mtp.mtp import MtpDrafter, NativeMtp, TorchMtp, unsupported
from foreword.draft.mtp.mtp_checkpoint import load
from foreword.draft.mtp.mtp_head import MtpHead
from foreword.model import Model, Read
from foreword.native import forward
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Request, SamplingParams
from foreword_train.registry import MtpOptions
from mtp_families import FAMILIES, write
from running import sayings, served, shelf, target

pytestmark = pytest.mark.skipif(
    forward.reason() is not None, reason=str(forward.reason())
)
LENGTH = 40


def trained(dtype: torch.dtype) -> MtpHead:
    return load(shelf(MtpOptions(unroll=2)), target().hf, dtype)


def read_by(executor: HeadExecutor) -> StateReader:
    return StateReader(executor, 4 * LENGTH)


def text() -> list[int]:
    return list(sayings()[2][:LENGTH])


def states() -> torch.Tensor:
    """The target's last hidden states along the text."""
    model = target("bfloat16")
    model.open(-3, LENGTH)
    last = (model.hf.config.num_hidden_layers,)
    _, found = model.read_hidden([Read(-3, 0, text(), keep=0)], last)
    model.close(-3)
    return found


@pytest.fixture
def reader() -> Iterator[StateReader]:
    head = trained(torch.bfloat16)
    assert unsupported(head, target("bfloat16")) is None
    found = read_by(NativeMtp(head, target("bfloat16")))
    found.open(1, 4 * LENGTH)
    yield found
    found.close(1)


def test_scores_are_those_of_torch_up_to_bfloat16(reader):
    given = states()
    exact = read_by(TorchMtp(trained(torch.float32), target("float32")))
    rounded = read_by(TorchMtp(trained(torch.bfloat16), target("bfloat16")))
    found = []
    for one in (exact, rounded, reader):
        if one is not reader:
            one.open(1, 4 * LENGTH)
        found.append(scores(one, text(), given))
    truth, theirs, ours = found
    errors = [
        (one - truth).pow(2).mean().sqrt() / truth.std() for one in (theirs, ours)
    ]
    # hidden states stay in float32 between products here
    assert errors[1] < errors[0]
    assert errors[1] < 0.05


def test_row_bits_do_not_depend_on_the_batch(reader):
    check_row_bits(reader, text(), states())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_call_grows_the_tree_that_levels_grow(temperature):
    grown = []
    for at_once in (True, False):
        drafter = served(MtpOptions(unroll=2), "bfloat16")
        if not at_once:
            drafter._at_once = lambda *_: False
        params = SamplingParams(temperature=temperature, max_tokens=64)
        eos = target("bfloat16").eos
        one = Request(1, text(), 12, params, seed=7, eos=eos)
        noise = NoiseStreams(target("bfloat16").vocab, shared=True)
        drafter.on_hidden_states(one, 0, states()[:-1])
        draft = drafter.propose(Batch((one,), noise, True, 0.001), [12])
        grown.append([(tree.tokens, tree.parents) for tree in draft.trees])
    assert len(grown[0][0][0]) > 4
    assert grown[0] == grown[1]


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_layer_drafts_beside_a_target_in_few_bits(weights, tmp_path):
    folder = write(FAMILIES["llama"], tmp_path)
    model = Model.load(folder, dtype="bfloat16", weights=weights)
    drafter = MtpDrafter.load(None, model, None)
    assert isinstance(drafter.executor, NativeMtp)
    one = Request(1, list(range(3, 15)), 12, SamplingParams(max_tokens=20), seed=0)
    model.open(1, 64)
    read = Read(1, 0, one.tokens[:-1], keep=0)
    _, given = model.read_hidden([read], drafter.hidden_layers)
    drafter.on_hidden_states(one, 0, given)
    noise = NoiseStreams(model.vocab, shared=True)
    draft = drafter.propose(Batch((one,), noise, True, 0.001), [4])
    assert len(draft.trees[0]) > 0


def test_what_c_does_not_compute_is_left_to_torch(tmp_path):
    folder = write(FAMILIES["glm"], tmp_path)
    model = Model.load(folder, dtype="float32")
    head = load(folder, model.hf, torch.float32)
    assert unsupported(copy.deepcopy(head), model) == "the target does not run in C"
    assert isinstance(MtpDrafter.of(head, model).executor, TorchMtp)
