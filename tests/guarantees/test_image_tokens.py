"""A picture of tokens written with drafts is the file written plainly."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers as hf

from folders import module_at
from foreword import LLM, Completion
from foreword.model.loading.given import Given
from grids import slow_case
from tiny_sizes import decoder

SCRIPT = Path(__file__).parents[2] / "recipes" / "image_tokens.py"
COUNT = 2
METHODS = {
    "ngram": 4,
    "suffix": 4,
    "recycle": 0,
    "lookahead": 0,
    "medusa": 0,
    "eagle": 0,
    "lm": 0,
    "cascade(recycle, lm)": 0,
}
"""Method, and the likeliest tokens kept: where all are, no copy is accepted."""


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return module_at(SCRIPT, "recipe_of_image_tokens")


@pytest.fixture(scope="module")
def trained(recipe: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of one layer and its drafters, after a few steps."""
    out = tmp_path_factory.mktemp("pictures")
    recipe.train(out=out, count=64, steps=24, hidden=64, layers=1, batch=8)
    return out


@pytest.fixture(scope="module")
def llm(recipe: ModuleType, trained: Path) -> LLM:
    return recipe.opened(trained)


def files(recipe: ModuleType, out: Path, answers: list[Completion]) -> list[bytes]:
    paint = recipe.decoder(out)
    return [recipe.png(paint.picture(answer.tokens)) for answer in answers]


@pytest.mark.sample(9)
@pytest.mark.parametrize("method", METHODS)
def test_a_picture_with_drafts_is_the_file_of_plain_decoding(
    recipe, trained, llm, method
):
    options = dict(temperature=1.0, top_k=METHODS[method])
    plain = llm.generate(*recipe.asked(COUNT, 7, **options, method="none"))
    drafted = llm.generate(*recipe.asked(COUNT, 7, **options, method=method, nodes=8))
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert {len(one.tokens) for one in plain} == {recipe.TOKENS}
    assert all(one.stats.drafted > 0 for one in drafted)
    first = sum(sum(one.stats.accepted_at[:1]) for one in drafted)
    assert first > 0
    if method == "ngram":  # others may be right in every round
        assert first < sum(one.stats.drafting_rounds for one in drafted)
    assert [one.undrafted for one in drafted] == [None] * COUNT
    pictures = files(recipe, trained, plain)
    assert files(recipe, trained, drafted) == pictures
    assert len(set(pictures)) == COUNT
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)


def test_guidance_as_a_processor_is_exact(recipe, trained, llm):
    guide = (recipe.Guidance(trained / "target", 3.0),)
    options = dict(max_tokens=24, processors=guide)
    plain = llm.generate(*recipe.asked(2, 7, **options, method="none"))
    drafted = llm.generate(*recipe.asked(2, 7, **options, method="lm", nodes=4))
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert sum(one.stats.accepted for one in drafted) > 0
    logits = torch.zeros(1, llm.target.vocab)
    assert not torch.equal(
        guide[0](torch.tensor([plain[0].prompt_tokens]), logits), logits
    )


def tiny(kind: str) -> Given:
    """A random model of picture tokens, as transformers builds it."""
    ends = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    text = decoder(max_position_embeddings=256, initializer_range=0.3, **ends)
    torch.manual_seed(1)
    return (
        hf.Emu3ForCausalLM(hf.Emu3TextConfig(**text))
        if kind == "emu3"
        else hf.LlamaForCausalLM(hf.LlamaConfig(**text))
    )


@pytest.mark.parametrize("kind", ["emu3", slow_case("llama")])
def test_models_in_memory_write_trees_of_token_ids(recipe, kind):
    prompts, params = recipe.asked(COUNT, 5, max_tokens=40)
    with LLM(tiny(kind), tokenizer=False, draft=tiny(kind), nodes=8) as one:
        drafted = one.generate(prompts, params)
        plain = one.generate(prompts, [replace(own, method="none") for own in params])
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in plain]
    assert sum(answer.stats.accepted for answer in drafted) > COUNT * 20
