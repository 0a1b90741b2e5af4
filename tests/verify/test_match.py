"""Sample and match: through a tree, through a chain, and shared noise's worth."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.types import Draft, Noise, Verdict
from foreword.verify.match import match
from foreword_lab.certify.worlds import chain, changed

VOCAB = 3


def quiet(rows: int, columns: int) -> Noise:
    """No noise at all: the likeliest token."""
    return Noise(
        None, torch.full((rows, columns), 0.5), torch.full((rows, columns), 0.5)
    )


def saying(tokens: torch.Tensor) -> torch.Tensor:
    """Log-weights under which the target says these tokens [row, column]."""
    return torch.nn.functional.one_hot(tokens, VOCAB).double()


def walk(
    says: list[int], tokens: list[int], parents: list[int], count: int
) -> tuple[list[int], int]:
    """The definition: from the root, follow the first child with the target's token."""
    path, here = [], -1
    while True:
        below = [n for n in range(count) if parents[n] == here]
        children = [n for n in below if tokens[n] == says[here + 1]]
        if not children:
            return path, says[here + 1]
        here = children[0]
        path.append(here)


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[list[int], list[int], list[int], int]]:
    """Rows of (target's token after each node, tokens, parents, count), padded."""
    width = draw(st.integers(0, 10))
    token = st.integers(0, VOCAB - 1)
    row = st.tuples(
        st.lists(token, min_size=width + 1, max_size=width + 1),
        st.lists(token, min_size=width, max_size=width),
        st.tuples(*(st.integers(-1, node - 1) for node in range(width))).map(list),
        st.integers(0, width),
    )
    return draw(st.lists(row, min_size=1, max_size=4))


def verify(rows: list[tuple[list[int], list[int], list[int], int]]) -> Verdict:
    says, tokens, parents, count = (
        torch.tensor(part, dtype=torch.long) for part in zip(*rows, strict=True)
    )
    return match(
        saying(says),
        Draft.padded(tokens, parents, count, chain=False),
        quiet(*says.shape),
    )


@given(forests())
def test_trees_are_walked_as_defined(
    rows: list[tuple[list[int], list[int], list[int], int]],
) -> None:
    verdict = verify(rows)
    for index, row in enumerate(rows):
        path, bonus = walk(*row)
        assert verdict.path[index].tolist() == path + [-1] * (len(row[1]) - len(path))
        assert (verdict.accepted[index], verdict.bonus[index]) == (len(path), bonus)


@given(forests())
def test_a_chain_is_a_tree_with_one_branch(
    rows: list[tuple[list[int], list[int], list[int], int]],
) -> None:
    says, tokens, _, count = (
        torch.tensor(part, dtype=torch.long) for part in zip(*rows, strict=True)
    )
    draft = changed(chain(tokens, None), count=count)
    fast = match(saying(says), draft, quiet(*says.shape))
    plain = match(saying(says), changed(draft, chain=False), quiet(*says.shape))
    assert torch.equal(fast.path, plain.path)
    assert torch.equal(fast.accepted, plain.accepted)
    assert torch.equal(fast.bonus, plain.bonus)


def test_the_first_of_equal_siblings_is_followed() -> None:
    verdict = verify([([1, 0, 2, 2], [1, 1, 0], [-1, -1, 1], 3)])
    assert verdict.path.tolist() == [[0, -1, -1]]
    assert verdict.bonus.tolist() == [0]


def test_last_node_of_full_path_is_followed_by_bonus() -> None:
    verdict = verify([([0, 1, 2, 1], [0, 1, 2], [-1, 0, 1], 3)])
    assert verdict.path.tolist() == [[0, 1, 2]]
    assert verdict.bonus.tolist() == [1]


def test_shared_noise_is_worth_what_theory_says() -> None:
    """Daliri et al. (2408.07978): P(match) = sum_x 1 / sum_y max(p_y/p_x, q_y/q_x)."""
    rng = torch.Generator().manual_seed(0)
    rows, vocab = 200_000, 6
    p, q = torch.randn(2, vocab, generator=rng, dtype=torch.float64).softmax(-1)
    gumbel = torch.empty(rows, 2, vocab, dtype=torch.float64)
    gumbel = -gumbel.exponential_(generator=rng).log()
    draft_token = (q.log() + gumbel[:, 0]).argmax(dim=1, keepdim=True)
    verdict = match(
        p.log().expand(rows, 2, -1),
        chain(draft_token, None),
        replace(quiet(rows, 2), gumbel=gumbel),
    )
    theory = (1 / torch.maximum(p / p[:, None], q / q[:, None]).sum(dim=1)).sum().item()
    overlap = torch.minimum(p, q).sum().item()
    assert overlap / (2 - overlap) <= theory <= overlap
    # Four standard errors of a share.
    assert (
        abs(verdict.accepted.double().mean().item() - theory)
        < 4 * (theory * (1 - theory) / rows) ** 0.5
    )
