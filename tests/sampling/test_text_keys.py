"""A sampled token depends on target, parameters, seed and earlier tokens alone."""

from dataclasses import replace

from foreword import LLM, SamplingParams

PARAMS = SamplingParams(temperature=1.0, seed=42, max_tokens=40, ignore_eos=True)
PROMPTS = [[5 + 37 * number, *range(300, 311)] for number in range(22)]
"""They differ in one token far back, so that the next one has nearly one distribution."""


def pairs_alike(firsts: list[int]) -> float:
    pairs = [(a, b) for at, a in enumerate(firsts) for b in firsts[:at]]
    return sum(a == b for a, b in pairs) / len(pairs)


def test_prompts_of_one_length_are_independent_under_one_seed(llm: LLM) -> None:
    """Pairs of equal first tokens are as frequent as under a seed each."""
    one = replace(PARAMS, max_tokens=1)
    shared = [answer.tokens[0] for answer in llm.generate(PROMPTS, one)]
    several = [replace(one, seed=seed) for seed in range(len(PROMPTS))]
    apart = [answer.tokens[0] for answer in llm.generate(PROMPTS, several)]
    assert abs(pairs_alike(shared) - pairs_alike(apart)) < 0.1


def test_seeds_next_to_each_other_share_no_answer(llm: LLM) -> None:
    answers = [
        {tuple(answer.tokens) for answer in llm.generate([PROMPTS[0]], params)}
        for seed in (0, 1)
        for params in [replace(PARAMS, seed=seed, n=4)]
    ]
    assert not answers[0] & answers[1]


def test_a_text_goes_on_equally_wherever_it_is_cut(llm: LLM) -> None:
    (whole,) = llm.generate([PROMPTS[0]], PARAMS)
    assert whole.stats.accepted
    for cut in range(10, PARAMS.max_tokens, 10):
        rest = replace(PARAMS, max_tokens=PARAMS.max_tokens - cut)
        (found,) = llm.generate([[*PROMPTS[0], *whole.tokens[:cut]]], rest)
        assert found.tokens == whole.tokens[cut:]


def test_a_chat_answer_goes_on_equally_from_its_beginning(llm: LLM) -> None:
    asked = [{"role": "user", "content": "Tell me about rivers."}]
    whole = llm.chat(asked, PARAMS)
    assert whole.stats.accepted
    for cut in range(10, PARAMS.max_tokens, 10):
        begun = llm.tokenizer.decode(whole.tokens[:cut])
        conversation = [*asked, {"role": "assistant", "content": begun}]
        options = {"continue_final_message": True}
        prompt = llm.render(conversation, template_options=options)
        rest = replace(PARAMS, max_tokens=PARAMS.max_tokens - cut)
        (found,) = llm.generate([prompt], rest)
        assert found.tokens == whole.tokens[cut:]
