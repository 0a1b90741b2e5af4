"""Commands that train drafters, make data for it, export heads, and publish."""

from foreword.cli.common.command import PREPARE, Command
from foreword_train.commands.data import data
from foreword_train.commands.export import export
from foreword_train.commands.push import push
from foreword_train.commands.train import train

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
