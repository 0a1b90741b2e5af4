"""The optimizer of each weight, compared with torch's own step by step."""

import copy

import pytest
import torch
from torch import nn

from foreword_train.optimizers import Optimizer

RATE, DECAY = 0.02, 0.1


class Net(nn.Module):
    """Embeddings, a map, a norm, and an output matrix that is tied or not."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(32, 8)
        self.inside = nn.Linear(8, 8)
        self.norm = nn.RMSNorm(8)
        self.still = nn.Linear(8, 8).requires_grad_(False)
        self.lm_head = nn.Linear(8, 32, bias=False)
        if tied:
            self.lm_head.weight = self.embedding.weight

    def loss(self, seed: int) -> torch.Tensor:
        tokens = torch.randint(32, (40,), generator=torch.Generator().manual_seed(seed))
        hidden = self.norm(self.still(self.inside(self.embedding(tokens[:-1]))))
        return nn.functional.cross_entropy(self.lm_head(hidden), tokens[1:])


def learnt(net: Net, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    for seed in range(3):
        net.loss(seed).backward()
        optimizer.step(RATE)
    assert all(weight.grad is None for weight in net.parameters())
    return dict(net.named_parameters())


def expected(net: Net, parts: list[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    for seed in range(3):
        net.loss(seed).backward()
        for part in parts:
            part.step()
            part.zero_grad()
    return dict(net.named_parameters())


def adamw(weights: list[torch.Tensor], decay: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.95), weight_decay=decay)


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


@pytest.mark.parametrize("tied", [False, True])
def test_adamw_decays_matrices_only(tied):
    net = Net(tied)
    plain = copy.deepcopy(net)
    matrices = [
        weight
        for weight in plain.parameters()
        if weight.dim() == 2 and weight.requires_grad
    ]
    vectors = [
        weight
        for weight in plain.parameters()
        if weight.dim() == 1 and weight.requires_grad
    ]
    wanted = expected(plain, [adamw(matrices, DECAY), adamw(vectors, 0.0)])
    same(learnt(net, Optimizer("adamw", net, DECAY)), wanted)


@pytest.mark.parametrize("tied", [False, True])
def test_muon_trains_linear_maps_and_adamw_the_rest(tied):
    net = Net(tied)
    plain = copy.deepcopy(net)
    others = [
        weight
        for name, weight in plain.named_parameters()
        if weight.requires_grad and name != "inside.weight"
    ]
    maps = torch.optim.Muon(
        [plain.inside.weight],
        lr=RATE,
        weight_decay=DECAY,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    wanted = expected(plain, [adamw(others, 0.0), maps])
    same(learnt(net, Optimizer("muon", net, DECAY)), wanted)


def test_muon_trains_a_net_without_maps():
    net = nn.Embedding(4, 4)
    before = net.weight.detach().clone()
    optimizer = Optimizer("muon", net, DECAY)
    net.weight.pow(2).sum().backward()
    optimizer.step(RATE)
    assert not torch.equal(net.weight, before)
