"""Commands that train drafters, make data for it, export heads, and publish."""

from foreword.cli.common.command import PREPARE, Command
from foreword.cli.common.options import examples
from foreword_train.commands.acceptance import acceptance
from foreword_train.commands.data import data
from foreword_train.commands.export import export
from foreword_train.commands.push import push
from foreword_train.commands.train import train

train.command(
    epilog=examples(
        "foreword train acceptance --data answers.jsonl --out accept",
        "foreword train acceptance --model path/or/hub-id --draft path/or/hub-id "
        "--data answers.jsonl --out accept",
        'foreword generate "…" --budget acceptance:accept',
    )
)(acceptance)

COMMANDS = (
    Command(
        PREPARE,
        "export",
        export,
        (
            "foreword export head --for vllm --out head-vllm",
            "foreword export head --for llama.cpp -o out -m path/or/hub-id --json",
        ),
    ),
    Command(
        PREPARE,
        "push",
        push,
        ("foreword push draft ORG/NAME --base-model ORG/TARGET --private",),
    ),
    Command(
        PREPARE, "train", train, ("foreword train lm --data answers.jsonl --out draft",)
    ),
    Command(
        PREPARE,
        "data",
        data,
        ("foreword data regenerate --data chats.jsonl --out answers.jsonl",),
    ),
)
