"""What every test stands on: one thread, fixed random numbers, GPU tests with a GPU."""

import gc
import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from zlib import crc32

import jaxtyping
import pytest
import torch
from hypothesis import settings

import durations
import folders
import reaper
from foreword.budget.kept import KeptStates

gc.disable()  # imports leave no garbage to search for
settings.register_profile("foreword", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("foreword")

if not torch.cuda.is_available():
    # before anyone imports it: what is compiled elsewhere is interpreted here
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests run side by side; each gets one core."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """A shell's background jobs ignore interrupts; programs started here must not."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What takes long to make is made once, not once in every process."""
    base = tmp_path_factory.getbasetemp()
    folders.common.append(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


dice = random.Random(0)
secrets.randbits = dice.getrandbits  # a request without a seed draws one from here


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Tests and requests without a seed of their own draw the same every time."""
    torch.manual_seed(0)
    dice.seed(0)


@pytest.fixture(autouse=True)
def unlearnt(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A choice among methods begins without speeds of other tests, and keeps none."""
    folder = tmp_path_factory.getbasetemp() / f"speeds-{next(numbers)}"
    monkeypatch.setattr(KeptStates, "folder", folder)
    monkeypatch.setattr(KeptStates, "opened", {})


@pytest.fixture(autouse=True, scope="session")
def kept() -> None:
    """Costs of forwards are kept on disk, so that not every load measures them."""
    from foreword.model import cost_table

    cost_table.BUSY = float("inf")


@pytest.fixture
def here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unchecked: None,
) -> object:
    """Run `foreword` in this process, in a folder of the test."""
    from command import Here  # not before the types of calls are checked

    return Here(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="session")
def llm() -> Iterator[object]:
    """A fixed number of draft tokens, however busy the machine is."""
    from foreword import LLM

    with LLM(slots=16, nodes=4) as llm:
        yield llm


@pytest.fixture(scope="session")
def server(llm: object) -> Iterator[object]:
    from serving import running

    with running(llm) as server:
        yield server


numbers = count()
CHECKED = 6
"""`make test` checks types and shapes in one test of so many: it takes time."""


@pytest.fixture(autouse=True)
def shapes(request: pytest.FixtureRequest) -> None:
    """By the test's name alone; `make test-all` checks them in every test."""
    every = not request.config.option.markexpr
    wanted = every or crc32(request.node.nodeid.encode()) % CHECKED == 0
    jaxtyping.config.update("jaxtyping_disable", not wanted)


OLDER = "as on a processor without AVX512"


@pytest.fixture(
    params=["vectors", "matrices", pytest.param(OLDER, marks=pytest.mark.slow)]
)
def registers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The ways in which our C multiplies; the second needs AMX (test_simd.py)."""
    from foreword.native import forward
    from foreword.native.cpu import cpuinfo

    if request.param == OLDER:
        if not any(line.startswith("flags") and "avx2" in line for line in cpuinfo()):
            pytest.skip("the processor has no AVX2")
        monkeypatch.setenv("FOREWORD_CFLAGS", "-march=x86-64-v3")
        older = forward.library.__wrapped__()
        assert not isinstance(older, str), older
        monkeypatch.setattr(forward, "library", lambda: older)
        yield
        return
    before, wanted = forward.amx(), request.param == "matrices"
    if bool(forward.needed().foreword_use_amx(wanted)) != wanted:
        pytest.skip("the processor or the system has no AMX")
    yield
    forward.needed().foreword_use_amx(before)


@pytest.fixture
def unchecked(shapes: None) -> None:
    """Lets a test pass a wrong type, as users may, to see our own error."""
    jaxtyping.config.update("jaxtyping_disable", True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations", action="store_true", help="Write tests/durations.json."
    )


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if config.option.write_durations and not is_worker:
        config.pluginmanager.register(durations.Durations())
    reaper.begin()


@pytest.hookimpl(tryfirst=True)  # before marked tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    durations.longest_first(items)
    seen: Counter[str] = Counter()
    for item in items:
        if sample := item.get_closest_marker("sample"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % sample.args[0]:
                item.add_marker("slow")
            seen[test] += 1
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """What is imported and collected stays; a search for garbage leaves it out."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what a whole part of the program was not tested with."""
    skipped = terminalreporter.stats.get("skipped", [])
    if any("no Chromium is installed" in str(one.longrepr) for one in skipped):
        terminalreporter.write_line(
            "The page was not tested: no Chromium is installed here."
        )
