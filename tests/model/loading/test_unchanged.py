"""A model in memory is as it was, once an LLM that used it is closed."""

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import starter
import tiny_models
import tiny_vision
from foreword import LLM, SamplingParams
from foreword.model.loading.in_memory import borrow
from grids import slow_case

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = list(range(5, 17))
HOOKS = tuple(
    (
        "_forward_hooks _forward_pre_hooks _backward_hooks _state_dict_hooks "
        "_load_state_dict_pre_hooks"
    ).split()
)


def snapshot(model: PreTrainedModel) -> dict[str, object]:
    """Return all of a model: modules, hooks, weights, buffers, modes, configs."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    configs = {
        name: part.config
        for name, part in model.named_modules()
        if isinstance(part, PreTrainedModel)
    }
    return {
        "modules": [
            (name, id(part), type(part), part.training)
            for name, part in model.named_modules()
        ],
        "attributes": [
            (name, sorted(vars(part))) for name, part in model.named_modules()
        ],
        "hooks": [
            [list(getattr(part, kind)) for kind in HOOKS] for part in model.modules()
        ],
        "tensors": [
            (
                name,
                id(one),
                one.data_ptr(),
                one.dtype,
                one.device,
                one.requires_grad,
                one.grad is None,
            )
            for name, one in tensors.items()
        ],
        "values": {name: one.detach().clone() for name, one in tensors.items()},
        "configs": {name: config.to_dict() for name, config in configs.items()},
        "attention": {
            name: config._attn_implementation for name, config in configs.items()
        },
        "generation": model.generation_config.to_dict(),
        "text": text(model),
    }


def text(model: PreTrainedModel) -> list[int]:
    prompt = torch.tensor([PROMPT])
    return model.generate(
        prompt, max_new_tokens=6, do_sample=False, pad_token_id=0
    ).tolist()


def assert_unchanged(model: PreTrainedModel, before: dict[str, object]) -> None:
    after = snapshot(model)
    ours, theirs = before.pop("values"), after.pop("values")
    assert after == before
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def bundled(
    dtype: torch.dtype = torch.float32,
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The small one twice: a snapshot generates text, which is slow in bfloat16."""
    load = AutoModelForCausalLM.from_pretrained
    return load(starter.draft(), dtype=dtype), load(starter.draft(), dtype=dtype)


def tiny(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    return tiny_models.build(name), tiny_models.build(name)


@pytest.mark.parametrize(
    ("name", "backend", "same"),
    [
        ("bundled", "native", True),
        ("bundled", "native", False),
        ("llama", "pool", False),
        ("llama", "cache", True),
        ("mpt", None, False),
        *(
            slow_case(*case)
            for case in (("llama", "pool", True), ("llama", "cache", False))
        ),
        slow_case("mpt", None, True),
    ],
)
@pytest.mark.filterwarnings("ignore:.* runs in mode 'cache'")
def test_models_are_as_before_after_close(name, backend, same):
    target, draft = bundled(torch.bfloat16) if name == "bundled" else tiny(name)
    draft = target if same else draft.train()
    before = snapshot(target), snapshot(draft)
    llm = LLM(target, tokenizer=False, draft=draft, backend=backend, nodes=3)
    answer = llm.generate([PROMPT], GREEDY)[0]
    llm.close()
    assert_unchanged(target, before[0])
    assert_unchanged(draft, before[1])
    assert answer.undrafted is None
    assert answer.stats.drafted > 0


def test_model_drafts_for_itself_in_one_llm_after_another():
    target, _ = tiny("llama")
    answers = [
        LLM(target, tokenizer=False, draft=target, nodes=3).generate([PROMPT], GREEDY)[
            0
        ]
        for _ in range(2)
    ]
    assert [answer.stats.accepted for answer in answers] == [
        answers[0].stats.accepted
    ] * 2
    assert answers[0].stats.accepted > 0


def test_borrowed_model_keeps_attention_of_each_part():
    model = tiny_vision.build("qwen2.5-vl")
    model.set_attn_implementation(
        {"": "sdpa", "text_config": "eager", "vision_config": "sdpa"}
    )
    before = snapshot(model)
    with borrow(model):
        pass
    assert_unchanged(model, before)
    assert set(before["attention"].values()) == {"eager", "sdpa"}
