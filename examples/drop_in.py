"""Keep your transformers code; change one argument, or none.

python examples/drop_in.py [TARGET DRAFT]
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import foreword
from foreword import bundled

target, draft = sys.argv[1:3] or (str(bundled.target()), str(bundled.draft()))
tokenizer = AutoTokenizer.from_pretrained(target)
model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
small = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.float32)
inputs = tokenizer("The history of the city begins", return_tensors="pt")
options = dict(max_new_tokens=48, do_sample=False)

plain = model.generate(**inputs, **options)
print(tokenizer.decode(plain[0], skip_special_tokens=True))

# One call: it supports everything that transformers prepares (processors, stopping
# criteria, padding).
answer = model.generate(
    **inputs,
    **options,
    custom_generate=foreword.generate,
    drafter=small,
    nodes=4,
    return_dict_in_generate=True,
)
stats = answer.stats[0]
print(
    f"\ncustom_generate: same text {torch.equal(plain, answer.sequences)}, "
    f"{stats.tokens_per_pass:.2f} tokens a pass"
)

# All calls: the argument names of existing code work.
with foreword.enable():
    assisted = model.generate(**inputs, **options, assistant_model=small)
    spelled = model.generate(
        inputs.input_ids, **options, draft_model=small, speculative_decoding=True
    )
print(
    "enable(): same text "
    f"{torch.equal(plain, assisted) and torch.equal(plain, spelled)}"
)
