"""The tables of docs/benchmarks/rules.md are what the rules give, by random draws."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foreword.draft.tree.shapes import full_tree
from foreword.types import Draft, Noise
from foreword.verify import RULES

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "rules.md"
PAIRS, RUNS, VOCAB = 60, 500, 14
DRAFTERS = {"good": 0.7, "noisy": 1.5}


def rows(title: str) -> list[tuple[str, list[float]]]:
    """The rows of the table below a heading: first cell, and the others' numbers."""
    section = (
        PAGE.read_text(encoding="utf-8").split(f"### {title}\n")[1].split("\n#")[0]
    )
    rows = [line for line in section.splitlines() if line.startswith("|")]
    cells = [re.findall(r"[^|]+", row) for row in rows]
    assert len(cells) > 2, f"there is no table below {title}"
    return [
        (row[0].strip(), [float(cell) for cell in row[1:] if cell.strip()])
        for row in cells[2:]
    ]


def distributions(noise: float, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-weights of target and drafter after each token, [pair, vocab, vocab]."""
    rng = torch.Generator().manual_seed(0)
    target = 2 * torch.randn(PAIRS, VOCAB, VOCAB, generator=rng)
    return target / temperature, (
        target + noise * torch.randn(target.shape, generator=rng)
    ) / temperature


def kept(
    rule: str, how: str, branching: tuple[int, ...], world: tuple[Tensor, Tensor]
) -> float:
    """Drafts kept on average; `how`: one, distinct, coupled or chosen."""
    rng, (target, drafter) = torch.Generator().manual_seed(1), world
    parents, count = full_tree(branching), PAIRS * RUNS
    pair = torch.arange(PAIRS).repeat_interleave(RUNS)
    gumbel = (
        -torch.empty(count, len(branching) + 1, VOCAB).exponential_(generator=rng).log()
    )
    tokens = torch.zeros(count, len(parents), dtype=torch.long)
    last = torch.zeros(count, 1, dtype=torch.long)
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    for parent in dict.fromkeys(parents):
        children = [node for node, other in enumerate(parents) if other == parent]
        distribution = drafter[pair, torch.cat((last, tokens), dim=1)[:, parent + 1]]
        noise = -torch.empty(count, VOCAB).exponential_(generator=rng).log()
        by = {"coupled": gumbel[:, depths[parent + 1]], "chosen": torch.zeros(())}.get(
            how, noise
        )
        tokens[:, children] = (distribution + by).topk(len(children)).indices
    before = torch.cat((last, tokens), dim=1)
    probs = drafter[
        pair[:, None], before[:, [parent + 1 for parent in parents]]
    ].softmax(-1)
    carried = None if how in ("coupled", "chosen") else probs
    as_chain = all(children == 1 for children in branching)
    draft = Draft.padded(
        tokens,
        torch.tensor(parents).expand(count, -1),
        torch.full((count,), len(parents)),
        carried,
        chain=as_chain,
    )
    accept, bonus = torch.rand(
        2, count, len(parents) + 1, generator=rng, dtype=torch.float64
    )
    verdict = RULES[rule].verify(
        target[pair[:, None], before], draft, Noise(gumbel[:, depths], accept, bonus)
    )
    return verdict.accepted.double().mean().item()


CHAINS = {
    "rejection": ("rejection", "one"),
    "block": ("block", "one"),
    "match, coupled chain": ("match", "coupled"),
}
TREES = {
    "without-replacement": ("without-replacement", "distinct"),
    "traversal": ("traversal", "distinct"),
    "match, coupled": ("match", "coupled"),
    "match, likeliest": ("match", "chosen"),
}
WORLDS = [(drafter, temperature) for drafter in DRAFTERS for temperature in (0.5, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "sizes"), [("One draft token", (1,)), ("One list", (2, 4))]
)
def test_how_often_a_list_holds_the_token(title: str, sizes: tuple[int, ...]) -> None:
    for name, printed in rows(title):
        rule, how = (CHAINS | TREES)[name]
        found = [
            kept(rule, how, (many,), distributions(DRAFTERS[drafter], t))
            for drafter, t in WORLDS
            for many in sizes
        ]
        assert printed == pytest.approx(found, abs=0.015), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "tree"),
    [("Six draft tokens", (2, 1, 1)), ("Twelve draft tokens", (3, 1, 1, 1))],
)
def test_tokens_for_each_pass(title: str, tree: tuple[int, ...]) -> None:
    table = rows(title)
    assert [name for name, _ in table] == [*CHAINS, *TREES]
    for name, printed in table:
        rule, how = (CHAINS | TREES)[name]
        branching = (1,) * len(full_tree(tree)) if name in CHAINS else tree
        found = [
            1 + kept(rule, how, branching, distributions(DRAFTERS[drafter], t))
            for drafter, t in WORLDS
        ]
        assert printed == pytest.approx(found, abs=0.03), name
