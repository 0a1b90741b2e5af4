"""What a forward costs by the tokens it checks, beside the memory limit: forward_cost.py [llama-350m]"""

import sys
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM

from foreword import family
from foreword.bench.inflate import SHAPES, inflate
from foreword.model import Model, measure


def read_bandwidth(gigabytes: float = 0.5) -> float:
    """Bytes a second of summing a tensor that no cache holds; the best of five."""
    big = torch.ones(int(gigabytes * 2**28))
    times = []
    for _ in range(5):
        before = perf_counter()
        big.sum()
        times.append(perf_counter() - before)
    return big.nbytes / min(times)


dtype = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
weights = AutoModelForCausalLM.from_pretrained(family.target(), dtype=dtype)
if len(sys.argv) > 1:
    weights = inflate(weights, SHAPES[sys.argv[1]])
size = sum(parameter.nbytes for parameter in weights.parameters())
model = Model(weights)
cost = measure(model, seconds=20)
floor = size / read_bandwidth()
print(f"{model.capability.way}, {size / 1e6:.0f} MB of weights, floor {floor * 1e3:.2f} ms a forward")
for rows, seconds in cost.items():
    share = f"{seconds / cost[1]:.2f} of one   {floor / seconds:4.0%} of the floor"
    print(f"{rows:3} tokens {seconds * 1e3:7.2f} ms   {share}")
