"""A draft model trains on what it computes when serving, on fewer rows by depth."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

import starter
from foreword.draft.pard import MaskBlocks, MaskedDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model, Read
from foreword_train.data.packing import Block, Piece, stack
from foreword_train.export import export
from foreword_train.methods.pard import MaskRows, MaskTraining
from foreword_train.registry import PardOptions
from pair import learn, llama, setting, two_records
from running import tokenizer

MASK = 300
DEPTH = 4


@pytest.fixture(scope="module")
def draft(tmp_path_factory) -> Path:
    """A draft model of the tiny target's size, not yet trained."""
    folder = tmp_path_factory.mktemp("draft") / "model"
    llama(1).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def task(
    draft: Path,
    target: LlamaForCausalLM | None = None,
    loss: str = "forward-kl",
    **options: object,
) -> MaskTraining:
    given = {"draft": str(draft), "depth": DEPTH, "mask": MASK, **options}
    context = setting(llama(0, layers=2) if target is None else target, loss=loss)
    made = PardOptions(**given).begin(context)
    assert isinstance(made, MaskTraining)
    return made


@contextmanager
def reading(model: Model, id: int, tokens: list[int]) -> Iterator[int]:
    """Have the model read all of these but the last; yield how many it has read."""
    model.open(id, 64)
    if len(tokens) > 1:
        model.read([Read(id, 0, tokens[:-1], keep=0)])
    yield len(tokens) - 1
    model.close(id)


@pytest.mark.parametrize("spread", [True, False])
@torch.no_grad()
def test_draft_is_trained_as_it_serves(draft, spread):
    made, block = task(draft, keep=1.0), two_records()
    torch.manual_seed(3)
    anchors = made.anchors(block, spread=spread)
    torch.manual_seed(3)
    predictions = made._predict(made.module, block, spread=spread)
    served, row = Model(made.draft), 0
    rows = MaskBlocks(served, MASK, 0)
    for _, at in anchors.valid.any(-1).nonzero().tolist():
        place = int(anchors.places[0, at])
        count = int(anchors.valid[0, at].sum())
        first = place - int(block.positions[0, place])
        text = block.tokens[0, first : place + 1].tolist()
        with reading(served, 1, text) as past:
            rows.queue(rows.masked(Read(1, past, text[-1:]), DEPTH))
            logits = rows.block(1)
        expected = predictions.draft[row : row + count]
        torch.testing.assert_close(expected, logits[:count], atol=1e-3, rtol=1e-3)
        row += count
    assert row == len(predictions.draft) == 2 * (3 * 4 + 3 + 2 + 1)


def test_deeper_rows_are_fewer_and_end_chains(draft):
    made = task(draft, depth=6, keep=0.5, least=0.2)
    tokens = list(range(1, 51))
    block = stack([Block.of([Piece(tokens, [True] * 50)], 50)] * 2)
    valid = made.anchors(block, spread=False).valid
    # 48 places after the first token have a token to learn
    assert valid[0, :, 0].sum() == 48
    assert (valid[..., 1:] <= valid[..., :-1]).all()
    for depth, most in enumerate((48, 24, 12, 10, 10, 10)):
        here = valid[..., depth].sum(1)
        # the last places lack the deepest tokens
        assert (here <= most).all()
        assert (here >= most - depth).all()
    whole = made.anchors(block, spread=True).valid
    assert whole[0].sum(0).tolist() == [48, 47, 46, 45, 44, 43]


def test_masks_attend_to_their_own_chain(draft):
    block = two_records()
    rows = MaskRows.after(task(draft).anchors(block, spread=True), 20)
    seen, positions = rows.seen(block)[0], rows.positions(block)[0]
    index = torch.arange(len(positions))
    for row in (index[20:][rows.depths[0] == 3]).tolist():
        place = int(rows.places[0, row - 20])
        attended = index[seen[row]].tolist()
        text = [one for one in attended if one < 20]
        masks = [one - 20 for one in attended if one >= 20]
        assert text == list(range(8 if place >= 8 else 0, place + 1))
        assert rows.places[0, masks].tolist() == [place] * 3
        assert rows.depths[0, masks].tolist() == [1, 2, 3]
        assert positions[row] == block.positions[0, place] + 3


def test_draft_learns_and_is_served(draft, tmp_path: Path):
    target = llama(0, layers=2)
    made = task(draft, target, "hybrid")
    first, last = learn(made, tmp_path / "run", steps=15, rate=0.02)
    for depth in (1, DEPTH):
        name = f"acceptance_{depth}"
        assert last[name] > first[name] + 0.05
    made.save(tmp_path / "made")
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert (config["pard_token"], config["spd_type"]) == (MASK, "pard")
    drafter = MaskedDrafter.load(tmp_path / "made", Model(target), None)
    assert isinstance(drafter, MaskedDrafter)
    assert drafter.blocks.mask == MASK
    # it goes on from there, with the same mask
    assert task(tmp_path / "made", mask=None).mask == MASK


def test_an_engine_gets_the_model_and_its_setting(draft, tmp_path: Path):
    made = task(draft)
    made.save(tmp_path / "made")
    exported = export(tmp_path / "made", starter.target(), "vllm", tmp_path / "out")
    assert '"method": "draft_model"' in exported.command
    assert '"parallel_drafting": true' in exported.command
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["pard_token"] == MASK
    with pytest.raises(InvalidRequest, match="sglang does not support it"):
        export(tmp_path / "made", starter.target(), "sglang", tmp_path / "no")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": 0.0}, "'keep' must be above 0"),
        ({"least": 1.5}, "'least' between 0 and 1"),
        ({"depth": 0}, "depth must be a whole number >= 1"),
        ({"mask": 320}, "the draft model has 320 tokens"),
    ],
)
def test_bad_options_are_refused(draft, options, said):
    with pytest.raises(InvalidRequest, match=said):
        task(draft, **options)


def test_a_draft_model_to_begin_from_is_needed():
    with pytest.raises(InvalidRequest, match="Give 'draft'"):
        PardOptions().begin(setting(llama(0)))
