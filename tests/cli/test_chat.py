"""`foreword chat`: a conversation with memory and commands that survives Ctrl-C."""

import io
import json
import signal
import sys

from asking import assistant, system, user
from foreword import SamplingParams
from owned import TALE, VALUES, owned


def test_history_lasts_until_reset(here, llm):
    lines = (
        "Who wrote Hamlet?",
        "/seed 5",
        "And when?",
        "/reset",
        "And when?",
        "/nonsense",
        "/seed many",
        "/exit",
        "no",
    )
    words = ("--seed", "4", "--max-tokens", "24", "--system", "Be brief.")
    found = here("chat", *words, typed="\n".join(lines) + "\n")

    def answer(seed: int, *said: str) -> str:
        roles = ("system", *("user", "assistant") * len(said))
        messages = [
            {"role": role, "content": text}
            for role, text in zip(roles, ("Be brief.", *said), strict=False)
        ]
        return llm.chat(messages, SamplingParams(seed=seed, max_tokens=24)).text

    first = answer(4, lines[0])
    second, third = answer(5, lines[0], first, "And when?"), answer(5, "And when?")
    assert second != third
    assert (found.returncode, found.stdout) == (0, f"{first}\n{second}\n{third}\n")
    assert "cannot run /nonsense: no such command exists" in found.stderr
    assert "cannot set the seed: it is not an integer" in found.stderr


def test_commands_change_the_conversation(here, llm):
    lines = (
        "/regen",
        "Who wrote Hamlet?",
        "/seed 5",
        "/regen",
        "/undo",
        "Say \\",
        "hello.",
        '"""',
        "Define",
        'river"""',
        "/system Be brief.",
        "Hello",
        "/stats",
        "/regn",
        "/save talk.json",
        "/save talk.md",
        "/save no/talk",
        "/help",
    )
    words = ("--seed", "4", "--max-tokens", "12", "--temperature", "0.9")
    found = here("chat", *words, typed="\n".join(lines) + "\n")
    answers: list[str] = []

    def say(seed: int, text: str, *system: dict[str, str]) -> None:
        params = SamplingParams(seed=seed, max_tokens=12, temperature=0.9)
        said = llm.chat([*system, *kept, user(text)], params).text
        answers.append(said)
        kept.extend((user(text), assistant(said)))

    kept: list[dict[str, str]] = []
    brief = system("Be brief.")
    say(4, "Who wrote Hamlet?")
    kept.clear()
    say(5, "Who wrote Hamlet?")
    kept.clear()
    say(5, "Say \nhello.")
    say(5, "Define\nriver")
    say(5, "Hello", brief)
    assert found.returncode == 0
    assert found.stdout == "".join(f"{answer}\n" for answer in answers)
    assert answers[0] != answers[1]
    for said in (
        "the chat has no question yet",
        "Did you mean /regen?",
        "removed: Who wrote Hamlet?",
        "cannot write",
    ):
        assert said in found.stderr
    saved = json.loads((here.folder / "talk.json").read_text())
    assert saved == {"messages": [brief, *kept]}
    assert "**user**\n\nHello\n\n**assistant**" in (here.folder / "talk.md").read_text()
    say(4, "And you?", brief)
    again = here("chat", *words, "--load", "talk.json", "--no-stats", typed="And you?")
    assert (again.returncode, again.stdout) == (0, answers[-1] + "\n")
    refused = here("chat", "--load", "talk.md")
    assert refused.returncode == 2
    assert "cannot load talk.md" in refused.stderr


def test_refused_request_does_not_end_the_chat(here):
    found = here(
        "chat", "--max-tokens", "5", typed="word " * 3000 + "\nHello\n/quit\nHello\n"
    )
    assert found.returncode == 0
    assert "/reset" in found.stderr
    assert found.stderr.count("tokens per pass") == 1, (
        "one was refused, one answered, and none was read after /quit"
    )
    assert found.stdout.strip()


def test_backend_option(here):
    found = here("chat", "--dtype", "float32", "--backend", "native", typed="Hello\n")
    assert (found.returncode, found.stdout) == (1, "")
    assert "cannot run this model on backend 'native'" in found.stderr


class Interrupting(io.StringIO):
    """Standard input of one question; Ctrl-C is pressed at the prompt after it."""

    def readline(self, size: int = -1) -> str:
        line = super().readline(size)
        if not line:
            signal.raise_signal(signal.SIGINT)
        return line


def test_ctrl_c_stops_the_answer_and_the_second_one_leaves(here, monkeypatch):
    write = sys.stdout.write

    def interrupted(text: str) -> int:
        count = write(text)
        if text.strip():
            signal.raise_signal(signal.SIGINT)
        return count

    monkeypatch.setattr(sys.stdout, "write", interrupted)
    question = 'Define the word "gasolene".\n'
    words = ("--temperature", "0", "--max-tokens", "900", "--method", "none")
    found = here("chat", *words, typed=Interrupting(question))
    assert found.returncode == 130
    assert "1 tokens" in found.stderr
    assert "interrupted" in found.stderr
    assert found.stdout.strip()
    assert found.stdout.endswith("\n")
    assert "Traceback" not in found.stderr


def test_sampling_is_that_of_the_owner_unless_given(here, tmp_path):
    folder = str(owned(tmp_path / "model"))
    words = ("-m", folder, "--seed", "3", "--max-tokens", "24", "--stats")
    values = [f"--{name.replace('_', '-')}={value}" for name, value in VALUES.items()]

    def said(*more: str) -> tuple[str, str]:
        found = here("chat", *words, *more, typed=TALE)
        line = next(line for line in found.stderr.splitlines() if "drafting" in line)
        return found.stdout, line

    left_out, given = said(), said("--generation-config", "none", *values)
    assert left_out[0] == given[0] == here("generate", TALE, *words).stdout
    assert left_out[1] == (
        "model, drafting with auto(ngram, suffix), chat template of the folder, "
        "temperature 0.6, top-k 40, top-p 0.9, repetition-penalty 1.05 (generation_config.json)"
    )
    cold = said("--temperature", "0.2", "--top-k", "0")
    assert cold[1].endswith(
        "temperature 0.2; top-p 0.9, repetition-penalty 1.05 (generation_config.json)"
    )
    plain = said("--generation-config", "none")
    assert plain[1].endswith("of the folder, temperature 1")
    assert len({left_out[0], cold[0], plain[0]}) == 3
