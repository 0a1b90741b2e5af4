"""What every rule owes: a name, and a verdict by the draft tokens in use alone."""

from dataclasses import replace

import pytest
import torch

from distributions import random_noise
from foreword.errors import InvalidRequest, UnknownMethod
from foreword.types import Draft, Noise, Verdict
from foreword.verify import RULES, rule
from foreword_lab.certify.worlds import along, chain, changed, repeat

ROWS, DEPTH, VOCAB = 300, 4, 5

every_rule = pytest.mark.parametrize("name", RULES)
every_tree_rule = pytest.mark.parametrize(
    "name", [name for name in RULES if RULES[name].trees]
)
every_probs = pytest.mark.parametrize(
    "with_probs", [True, False], ids=["drawn", "chosen"]
)


def problem(seed: int, with_probs: bool) -> tuple[torch.Tensor, Draft, Noise]:
    """Ragged drafts, from nothing to full width, that resemble what the target says."""
    rng = torch.Generator().manual_seed(seed)
    weights = 2 * torch.randn(ROWS, DEPTH + 1, VOCAB, generator=rng)
    noise = 0.5 * torch.randn(ROWS, DEPTH, VOCAB, generator=rng)
    q = (weights[:, :-1] + noise).softmax(-1)
    tokens = q.flatten(0, 1).multinomial(1, generator=rng).reshape(ROWS, DEPTH)
    count = torch.arange(ROWS) % (DEPTH + 1)
    draft = changed(chain(tokens, q if with_probs else None), count=count)
    return weights, draft, random_noise(weights.shape, rng)


def forest(seed: int, with_probs: bool) -> tuple[torch.Tensor, Draft, Noise]:
    """Ragged trees of random shapes whose siblings differ; parents before children."""
    rng = torch.Generator().manual_seed(seed)
    nodes = 6
    weights = 2 * torch.randn(ROWS, nodes + 1, VOCAB, generator=rng)
    ends = [max(node, 1) - (node > 0) for node in range(nodes)]
    above = [torch.randint(-1, end, (ROWS,), generator=rng) for end in ends]
    parents = torch.stack(above, 1)
    parents[:, 0] = -1
    tokens = torch.zeros(ROWS, nodes, dtype=torch.long)
    distributions = torch.zeros(ROWS, nodes, VOCAB)
    group = (weights + torch.randn(weights.shape, generator=rng)).softmax(-1)
    for node in range(nodes):
        rank = (parents[:, :node] == parents[:, node, None]).sum(dim=1)
        likeliest = weights.gather(
            1, (parents[:, node] + 1)[:, None, None].expand(-1, 1, VOCAB)
        )[:, 0].argsort(descending=True)
        tokens[:, node] = likeliest.gather(1, rank.clamp(max=VOCAB - 1)[:, None])[:, 0]
        distributions[:, node] = group[torch.arange(ROWS), parents[:, node] + 1]
    draft = Draft.padded(
        tokens,
        parents,
        torch.arange(ROWS) % (nodes + 1),
        distributions if with_probs else None,
        chain=False,
    )
    return weights, draft, random_noise(weights.shape, rng)


def assert_same(a: Verdict, b: Verdict) -> None:
    assert torch.equal(a.accepted, b.accepted)
    assert torch.equal(a.bonus, b.bonus)
    assert torch.equal(a.path, b.path)


@every_probs
@pytest.mark.parametrize(
    ("seed", "name", "other"),
    [(21, "without-replacement", "rejection"), (24, "traversal", "block")],
)
def test_a_chain_is_verified_as_by_a_rule_of_chains(seed, name, other, with_probs):
    drafted = problem(seed, with_probs)
    assert_same(RULES[name].verify(*drafted), RULES[other].verify(*drafted))


def test_rules_are_found_by_name():
    assert all(rule(name) is RULES[name] and rule(name).name == name for name in RULES)


def test_only_rules_that_share_noise_keep_the_text():
    for found in RULES.values():
        assert (found.keeps == "same-text") == found.shares_noise


def test_rules_for_trees_take_lists():
    for found in RULES.values():
        assert found.trees == (found.lists != "one")


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("trees", [False, True])
def test_a_guarantee_is_kept_by_the_rule_it_finds(draws, trees):
    assert rule("same-text", draws=draws, trees=trees) is RULES["match"]
    found = rule("same-distribution", draws=draws, trees=trees)
    # match keeps the distribution as well
    assert found.name == ("block" if draws and not trees else "match")


def test_an_unknown_rule_names_its_neighbour_and_the_rest():
    with pytest.raises(UnknownMethod, match="Did you mean 'rejection'") as error:
        rule("rejecton")
    assert all(name in str(error.value) for name in RULES)
    with pytest.raises(UnknownMethod) as error:
        rule("zzz")
    assert "Did you mean" not in str(error.value)


def greedily(name, weights, draft, noise) -> torch.Tensor:
    """Return what "match" accepts where the likeliest token is certain: all rules do."""
    likeliest = weights.argmax(-1, keepdim=True)
    certain = torch.full_like(weights, -torch.inf).scatter_(2, likeliest, 0.0)
    expected = RULES["match"].verify(weights, draft, replace(noise, gumbel=None))
    assert_same(RULES[name].verify(certain, draft, noise), expected)
    return expected.accepted


@every_rule
@every_probs
def test_greedy_rules_agree_row_by_row(name, with_probs):
    accepted = greedily(name, *problem(1, with_probs))
    assert accepted.unique().tolist() == list(range(DEPTH + 1))


@every_rule
@every_probs
def test_the_path_is_the_first_accepted_nodes(name, with_probs):
    weights, draft, noise = problem(2, with_probs)
    verdict = RULES[name].verify(weights, draft, noise)
    expected = torch.arange(DEPTH).expand(ROWS, -1).clone()
    expected[expected >= verdict.accepted[:, None]] = -1
    assert (verdict.accepted <= draft.count).all()
    assert (verdict.accepted > 0).any()
    assert torch.equal(verdict.path, expected)


@every_rule
@every_probs
@pytest.mark.parametrize("garbage", ["random", "impossible"])
def test_padding_never_matters(name, with_probs, garbage):
    weights, draft, noise = problem(3, with_probs)
    rng = torch.Generator().manual_seed(4)
    padded = torch.arange(DEPTH) >= draft.count[:, None]
    junk, number = torch.tensor(10**9), torch.nan
    if garbage == "random":
        junk, number = torch.randint(VOCAB, (ROWS, DEPTH), generator=rng), 9.0
    tokens = torch.where(padded, junk, draft.tokens)
    check_padding(name, (weights, draft, noise), tokens, number)


def check_padding(name, drafted, tokens, number):
    """Check that a verdict does not depend on what lies beyond the draft tokens."""
    weights, draft, noise = drafted
    padded = torch.arange(draft.nodes) >= draft.count[:, None]
    after = torch.cat((torch.zeros(ROWS, 1, dtype=torch.bool), padded), dim=1)
    probs = draft.probs
    if probs is not None:
        probs = probs.masked_fill(padded[..., None], number)
    parents = draft.parents.masked_fill(padded, -1)
    dirty = changed(draft, tokens=tokens, parents=parents, probs=probs)
    spoilt = weights.masked_fill(after[..., None], number)
    verdict = RULES[name].verify(spoilt, dirty, noise)
    assert_same(verdict, RULES[name].verify(weights, draft, noise))


@every_rule
@every_probs
def test_row_does_not_depend_on_width_or_on_its_batch(name, with_probs):
    weights, draft, noise = problem(5, with_probs)
    together = RULES[name].verify(weights, draft, noise)
    assert noise.gumbel is not None
    for row in range(2 * (DEPTH + 1)):
        one, width = slice(row, row + 1), int(draft.count[row])
        at = (one, slice(width + 1))
        narrow = Draft.padded(
            tokens=draft.tokens[one, :width],
            parents=draft.parents[one, :width],
            count=draft.count[one],
            probs=None if draft.probs is None else draft.probs[one, :width],
        )
        own = Noise(noise.gumbel[at], noise.accept[at], noise.bonus[at])
        alone = RULES[name].verify(weights[at], narrow, own)
        assert alone.accepted == together.accepted[row]
        assert alone.bonus == together.bonus[row]


@every_tree_rule
@every_probs
def test_greedy_rules_follow_the_same_branch(name, with_probs):
    assert len(greedily(name, *forest(8, with_probs)).unique()) > 2


@every_tree_rule
@every_probs
def test_path_leads_from_root_through_draft_tokens_in_use(name, with_probs):
    weights, draft, noise = forest(9, with_probs)
    verdict = RULES[name].verify(weights, draft, noise)
    assert len(verdict.accepted.unique()) > 2
    for row in range(ROWS):
        path = verdict.path[row, : verdict.accepted[row]].tolist()
        assert draft.parents[row, path].tolist() == [-1, *path[:-1]][: len(path)]
        assert all(node < draft.count[row] for node in path)
        assert (verdict.path[row, len(path) :] == -1).all()


@every_tree_rule
@every_probs
def test_padding_of_trees_never_matters(name, with_probs):
    weights, draft, noise = forest(10, with_probs)
    padded = torch.arange(draft.nodes) >= draft.count[:, None]
    tokens = draft.tokens.masked_fill(padded, 10**9)
    check_padding(name, (weights, draft, noise), tokens, torch.nan)


@every_tree_rule
@every_probs
def test_a_tree_does_not_depend_on_its_batch(name, with_probs):
    weights, draft, noise = forest(11, with_probs)
    together = RULES[name].verify(weights, draft, noise)
    assert noise.gumbel is not None
    for row in range(0, 4 * (draft.nodes + 1), 2):
        at = torch.tensor([row])
        own = Noise(noise.gumbel[at], noise.accept[at], noise.bonus[at])
        alone = RULES[name].verify(weights[at], repeat(draft, at), own)
        rows = together.path[at], together.accepted[at], together.bonus[at]
        assert_same(alone, Verdict.padded(*rows))


@every_rule
def test_without_draft_tokens_the_target_decides(name):
    rng = torch.Generator().manual_seed(6)
    distribution = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)
    rows = 20_000
    nothing = Draft.padded(
        *torch.zeros(2, rows, 0, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    )
    weights = along((distribution,), nothing).log()
    verdict = RULES[name].verify(weights, nothing, random_noise(weights.shape, rng))
    seen = verdict.bonus.bincount(minlength=4) / rows
    assert verdict.path.shape == (rows, 0)
    assert not verdict.accepted.any()
    assert seen[1] == 0
    assert (seen - distribution).abs().max() < 0.02


@pytest.mark.parametrize("name", [name for name in RULES if not RULES[name].trees])
def test_rules_for_chains_refuse_trees(name):
    weights, draft, noise = problem(7, with_probs=True)
    with pytest.raises(InvalidRequest, match="chains only"):
        RULES[name].verify(weights, changed(draft, chain=False), noise)
