"""Other engines take part only where they are installed; where they are not, it is said before any work."""

import importlib.util

import pytest

from foreword.bench import engines, peers
from foreword.bench.engines import ENGINES, WAYS, check, contenders
from foreword.bench.lineup import CONTENDERS, PLAIN_ROW, wanted
from foreword.bench.run import Options, run
from foreword.errors import InvalidRequest


@pytest.fixture
def installed(monkeypatch):
    """Says which modules can be found from now on."""

    def say(*modules: str) -> None:
        monkeypatch.setattr(engines, "find_spec", lambda name: object() if name in modules else None)

    return say


def test_each_engine_has_a_row_for_each_way_among_all_rows():
    assert tuple(f"{engine}.{way}" for engine in ("openvino", "llamacpp") for way in WAYS) == engines.NAMES
    assert set(engines.NAMES) < set(CONTENDERS)


def test_all_are_those_that_are_installed(installed):
    installed(*ENGINES["openvino"].modules)
    assert contenders(("all",)) == tuple(f"openvino.{way}" for way in WAYS)
    installed(*(module for package in ENGINES.values() for module in package.modules))
    assert contenders(("all",)) == engines.NAMES
    assert contenders(()) == ()


def test_without_its_packages_an_engine_says_what_to_install(installed):
    installed("openvino", "gguf")
    with pytest.raises(InvalidRequest, match=r"openvino_genai, openvino_tokenizers; install .* 'foreword\[peers\]'"):
        contenders(("openvino",))
    with pytest.raises(InvalidRequest, match=r"without llama_cpp; install .* llama-cpp-python"):
        check(("ngram", "llamacpp.lookup"))
    with pytest.raises(InvalidRequest, match=r"no peer is installed; install them with: .*foreword\[peers\]"):
        contenders(("all",))


def test_what_is_missing_is_said_before_any_work(installed):
    installed()
    for options in (Options(peers=("openvino",)), Options(methods=("openvino.generate",)), Options(peers=("vllm",))):
        with pytest.raises(InvalidRequest, match=r"install|no peer 'vllm'"):
            run(options, pytest.fail)


def test_peers_take_part_beside_the_usual_rows_or_those_asked_for(installed):
    installed(*ENGINES["llamacpp"].modules)
    theirs = tuple(f"llamacpp.{way}" for way in WAYS)
    assert wanted(None, quick=False, others=("all",)) == (*wanted(None, quick=False), *theirs)
    assert wanted(("oracle",), quick=False, others=("llamacpp",)) == (PLAIN_ROW, "oracle", peers.GENERATE, *theirs)
    assert wanted(("llamacpp.lookup",), quick=False) == (PLAIN_ROW, peers.GENERATE, "llamacpp.lookup")
    assert not set(engines.NAMES) & set(wanted(None, quick=False))


def test_versions_and_settings_are_told_of_those_that_take_part(monkeypatch):
    def told(name: str) -> str:
        if name == "openvino-genai":
            raise engines.PackageNotFoundError
        return "1.2"

    monkeypatch.setattr(engines, "version", told)
    assert engines.versions(("plain", "transformers.lookup")) == engines.settings(("plain",)) == {}
    assert engines.versions(("llamacpp.lookup", "openvino.generate")) == {
        "openvino-genai": "unknown",
        "llama-cpp-python": "1.2",
    }
    assert set(engines.settings(("plain", *engines.NAMES))["openvino"]) == {engines.ASSISTED, engines.LOOKUP}


def test_every_module_that_makes_contenders_is_there():
    for package in ENGINES.values():
        assert importlib.util.find_spec(package.contender)
