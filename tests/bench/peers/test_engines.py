"""Other engines take part only where they are installed; where they are not, it is said
before any work.
"""

import importlib.util

import pytest

from foreword.bench.lineup import ENTRIES, PLAIN_ROW, row_names
from foreword.bench.peers import hf, registry
from foreword.bench.peers.engines import ENGINES, MODES
from foreword.bench.peers.registry import check, entry_names
from foreword.bench.run import Options, run
from foreword.errors import InvalidRequest


@pytest.fixture
def installed(monkeypatch):
    """Says which modules can be found from now on."""

    def say(*modules: str) -> None:
        monkeypatch.setattr(
            registry, "find_spec", lambda name: object() if name in modules else None
        )

    return say


def test_each_engine_has_a_row_for_each_way_among_all_rows():
    assert (
        tuple(f"{engine}.{way}" for engine in ("openvino", "llamacpp") for way in MODES)
        == registry.NAMES
    )
    assert set(registry.NAMES) < set(ENTRIES)


def test_all_are_those_that_are_installed(installed):
    installed(*ENGINES["openvino"].modules)
    assert entry_names(("all",)) == tuple(f"openvino.{way}" for way in MODES)
    installed(*(module for package in ENGINES.values() for module in package.modules))
    assert entry_names(("all",)) == registry.NAMES
    assert entry_names(()) == ()


def test_without_its_packages_an_engine_says_what_to_install(installed):
    installed("openvino", "gguf")
    with pytest.raises(
        InvalidRequest,
        match=r"openvino_genai, openvino_tokenizers\. Run: .* 'foreword\[peers\]'",
    ):
        entry_names(("openvino",))
    with pytest.raises(
        InvalidRequest, match=r"without llama_cpp\. Run: .* llama-cpp-python"
    ):
        check(("ngram", "llamacpp.lookup"))
    with pytest.raises(
        InvalidRequest, match=r"none is installed\. Run: .*foreword\[peers\]"
    ):
        entry_names(("all",))


def test_what_is_missing_is_said_before_any_work(installed):
    installed()
    for options in (
        Options(peers=("openvino",)),
        Options(methods=("openvino.generate",)),
        Options(peers=("vllm",)),
    ):
        with pytest.raises(InvalidRequest, match=r"install|cannot measure 'vllm'"):
            run(options, pytest.fail)


def test_peers_take_part_beside_the_usual_rows_or_those_asked_for(installed):
    installed(*ENGINES["llamacpp"].modules)
    theirs = tuple(f"llamacpp.{way}" for way in MODES)
    assert row_names(None, quick=False, others=("all",)) == (
        *row_names(None, quick=False),
        *theirs,
    )
    assert row_names(("oracle",), quick=False, others=("llamacpp",)) == (
        PLAIN_ROW,
        "oracle",
        hf.GENERATE,
        *theirs,
    )
    assert row_names(("llamacpp.lookup",), quick=False) == (
        PLAIN_ROW,
        hf.GENERATE,
        "llamacpp.lookup",
    )
    assert not set(registry.NAMES) & set(row_names(None, quick=False))


def test_versions_and_settings_are_told_of_those_that_take_part(monkeypatch):
    def told(name: str) -> str:
        if name == "openvino-genai":
            raise registry.PackageNotFoundError
        return "1.2"

    monkeypatch.setattr(registry, "version", told)
    assert (
        registry.versions(("plain", "transformers.lookup"))
        == registry.settings(("plain",))
        == {}
    )
    assert registry.versions(("llamacpp.lookup", "openvino.generate")) == {
        "openvino-genai": "unknown",
        "llama-cpp-python": "1.2",
    }
    assert set(registry.settings(("plain", *registry.NAMES))["openvino"]) == {
        registry.ASSISTED,
        registry.LOOKUP,
    }


def test_every_module_that_makes_contenders_is_there():
    for package in ENGINES.values():
        assert importlib.util.find_spec(package.entry_module)
