"""Programs run as their users do: llm, transformers chat, lm-eval and guidellm."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import foreword.bundled
from foreword import LLM, Completion, SamplingParams
from serving import Running

pytestmark = pytest.mark.clients

TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."
WORD = "Define the word gasolene."
TOKENIZER = str(foreword.bundled.target())
Drafting = Callable[[], AbstractContextManager[None]]


def generated(llm: LLM, text: str, **params: Any) -> Completion:
    """Return the library's answer to one message."""
    return llm.generate(
        [llm.render([{"role": "user", "content": text}])], SamplingParams(**params)
    )[0]


@pytest.fixture
def home(tmp_path: Path, server: Running) -> str:
    """Return a folder of settings for llm."""
    model = {
        "model_id": "ours",
        "model_name": "foreword-family",
        "api_base": f"{server.url}/v1",
        "supports_schema": True,
    }
    # JSON is YAML
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    return str(tmp_path)


def test_llm_prints_the_text_of_the_library(client, home, llm, drafting):
    expected = generated(llm, TALE, seed=4, max_tokens=40)
    options = ("-o", "seed", "4", "-o", "max_tokens", "40")
    with drafting():
        printed = client("llm", "-m", "ours", TALE, *options, LLM_USER_PATH=home)
    assert printed == f"{expected.text}\n"
    kept = json.loads(client("llm", "logs", "--json", LLM_USER_PATH=home))[0]
    assert kept["input_tokens"] == len(expected.prompt_tokens)
    assert kept["output_tokens"] == len(expected.tokens)


def test_llm_gets_objects_of_a_schema(client, home, drafting):
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    with drafting():
        printed = client(
            "llm",
            "-m",
            "ours",
            WORD,
            "--schema",
            json.dumps(schema),
            LLM_USER_PATH=home,
        )
    assert json.loads(printed)["city"] in ("Paris", "Rome")


def test_transformers_chat_keeps_its_generation_settings(
    client, server, llm, tmp_path, drafting
):
    expected = generated(llm, TALE, temperature=0, max_tokens=24)
    asked = f"{TALE}\n!save\n!exit\n"
    with drafting():
        client(
            "transformers",
            "chat",
            "foreword-family",
            server.url,
            "do_sample=False",
            "max_new_tokens=24",
            given=asked,
            HF_HUB_OFFLINE="0",
        )
    kept = json.loads(next((tmp_path / "chat_history").rglob("*.json")).read_text())
    assert kept["chat_history"] == [
        {"role": "user", "content": TALE},
        {"role": "assistant", "content": expected.text},
    ]


CHOICES = """
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: choices.json}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
TALES = """
task: tales
dataset_path: json
dataset_kwargs: {data_files: {test: choices.json}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["never there"], do_sample: false, temperature: 0, max_gen_toks: 24}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
QUESTIONS = [
    {
        "question": "The river rose in the",
        "choices": [" night", " gasolene"],
        "answer": 0,
    },
    {"question": "Define the word", "choices": [" miller and", " grain"], "answer": 1},
]


def test_lm_eval_scores_as_the_library_does(client, server, llm, tmp_path, drafting):
    (tmp_path / "choices.json").write_text("\n".join(map(json.dumps, QUESTIONS)))
    (tmp_path / "choices.yaml").write_text(CHOICES)
    (tmp_path / "tales.yaml").write_text(TALES)
    about = f"model=foreword-family,base_url={server.url}/v1/completions,tokenizer={TOKENIZER},max_length=1024"
    with drafting():
        client(
            "lm_eval",
            "--model",
            "local-completions",
            "--model_args",
            f"{about},num_concurrent=2,max_retries=1",
            *(
                "--tasks choices,tales --include_path . --output_path out --log_samples"
            ).split(),
        )
    samples = {
        name: [
            json.loads(line)
            for line in next((tmp_path / "out").rglob(f"samples_{name}_*"))
            .read_text()
            .splitlines()
        ]
        for name in ("choices", "tales")
    }
    for sample in samples["choices"]:
        question, choices = sample["doc"]["question"], sample["doc"]["choices"]
        start = len(llm.tokenizer(question)["input_ids"])
        for choice, response in zip(choices, sample["resps"], strict=True):
            scores = llm.score(list(llm.tokenizer(question + choice)["input_ids"]))[
                start:
            ]
            assert float(response[0][0]) == pytest.approx(
                sum(one.logprob for one in scores), rel=1e-6
            )
    for sample in samples["tales"]:
        prompt = list(llm.tokenizer(sample["doc"]["question"])["input_ids"])
        expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=24))[
            0
        ]
        assert sample["resps"] == [[expected.text]]


def test_guidellm_measures_concurrent_requests(client, server, llm, tmp_path, drafting):
    expected = {
        text: generated(llm, text, temperature=0, max_tokens=40)
        for text in (TALE, WORD)
    }
    (tmp_path / "prompts.jsonl").write_text(
        "\n".join(json.dumps({"prompt": text}) for text in [TALE, WORD] * 3)
    )
    backend = {
        "kind": "openai_http",
        "target": server.url,
        "extras": {"body": {"temperature": 0, "max_tokens": 40}},
    }
    with drafting():
        client(
            "guidellm",
            "run",
            "--backend",
            json.dumps(backend),
            *(
                "--profile kind=concurrent,streams=2 --constraint "
                "kind=max_requests,count=6 --data kind=json_file,path=prompts.jsonl "
                "--output kind=json,path=out.json"
            ).split(),
        )
    requests = json.loads((tmp_path / "out.json").read_text())["benchmarks"][0][
        "requests"
    ]
    assert len(requests["successful"]) == 6
    assert not requests["errored"]
    for one in requests["successful"]:
        asked = json.loads(one["request_args"])["body"]["messages"][0]["content"][0][
            "text"
        ]
        assert one["output"] == expected[asked].text
        assert one["output_tokens"] == len(expected[asked].tokens)
        assert one["prompt_tokens"] == len(expected[asked].prompt_tokens)
        assert one["response_metrics"]["speculative_decoding"]["method"] == llm.method
