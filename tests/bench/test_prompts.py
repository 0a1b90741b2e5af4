"""The prompts that figures are measured on: fixed in number, source, length
and order.
"""

from collections import Counter
from importlib.resources import files

import pytest
from transformers import AutoTokenizer

import starter
from foreword.bench.prompts import load
from foreword.errors import InvalidRequest

KINDS = ("in-domain", "out-of-domain")


def test_in_domain_takes_three_from_each_source():
    assert Counter(Counter(prompt.source for prompt in load("in-domain")).values()) == {
        3: 21
    }


def test_out_of_domain_mixes_three_public_benchmarks():
    prompts = load("out-of-domain")
    assert Counter(prompt.source for prompt in prompts) == {
        "mt_bench": 12,
        "human_eval": 6,
        "gsm8k_test": 6,
    }
    assert (
        len({prompt.category for prompt in prompts if prompt.source == "mt_bench"}) == 8
    )


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_short_unique_user_turns(kind):
    tokenizer = AutoTokenizer.from_pretrained(starter.target(), local_files_only=True)
    prompts = load(kind)
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert prompt.messages[-1]["role"] == "user"
        text = tokenizer.apply_chat_template(
            list(prompt.messages), add_generation_prompt=True, tokenize=False
        )
        assert len(tokenizer(text).input_ids) <= 300


def test_the_licence_of_every_source_is_named():
    readme = (files("foreword.bench") / "data" / "README.md").read_text(
        encoding="utf-8"
    )
    named = {
        line.split("|")[1].strip()
        for line in readme.splitlines()
        if line.startswith("| ")
    }
    assert {prompt.source for kind in KINDS for prompt in load(kind)} <= named


@pytest.mark.usefixtures("unchecked")
def test_unknown_kind_names_the_known_ones():
    with pytest.raises(InvalidRequest, match="in-domain, out-of-domain"):
        load("indomain")
