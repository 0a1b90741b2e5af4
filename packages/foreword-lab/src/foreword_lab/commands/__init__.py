"""Commands that measure and show."""

from foreword.cli.common.command import INSPECT, MEASURE, PREPARE, Command
from foreword_lab.commands.bench import bench
from foreword_lab.commands.certify import certify
from foreword_lab.commands.demo import demo
from foreword_lab.commands.doctor import doctor
from foreword_lab.commands.quantize import quantize
from foreword_lab.commands.view import view
from foreword_lab.commands.whatif import whatif

COMMANDS = (
    Command(
        PREPARE,
        "quantize",
        quantize,
        (
            "foreword quantize path/or/hub-id --to int4 --out model-int4",
            "foreword quantize path/or/hub-id --to Q4_K_M --out model.Q4_K_M.gguf",
        ),
    ),
    Command(
        INSPECT,
        "view",
        view,
        (
            "foreword view answer.json --rounds",
            "foreword view answer.json --html answer.html",
        ),
    ),
    Command(
        INSPECT,
        "whatif",
        whatif,
        (
            'foreword generate "List the rivers" --record answer.json',
            "foreword whatif answer.json",
            "foreword whatif answer.json --method suffix --nodes 4,8 --trees",
        ),
    ),
    Command(
        INSPECT,
        "doctor",
        doctor,
        (
            "foreword doctor path/of/draft",
            "foreword doctor path/of/head --model path/or/hub-id --json",
            "foreword doctor --url http://127.0.0.1:8000",
        ),
    ),
    Command(
        INSPECT,
        "certify",
        certify,
        (
            "foreword certify --quick",
            "foreword certify path/or/hub-id -d path/or/hub-id --report proof.html",
            "foreword certify --url http://127.0.0.1:8000 --json -",
        ),
    ),
    Command(
        MEASURE,
        "demo",
        demo,
        (
            "foreword demo",
            "foreword demo --temperature 0.8 --seed 7",
            "foreword demo --html demo.html",
        ),
    ),
    Command(
        MEASURE,
        "bench",
        bench,
        (
            "foreword bench --quick --json quick.json",
            "foreword bench --inflate llama-350m --plot 350m.png",
            "foreword bench batch 1,4,16,32 --method lm",
            "foreword bench limit",
        ),
    ),
)
