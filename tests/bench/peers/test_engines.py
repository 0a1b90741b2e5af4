"""Other engines are measured only if installed; else an error names them first."""

import pytest

from foreword.errors import InvalidRequest
from foreword_lab.bench.lineup import ENTRIES, PLAIN_ROW
from foreword_lab.bench.peers import engines, hf, registry
from foreword_lab.bench.peers.engines import ENGINES, MODES
from foreword_lab.bench.peers.registry import check, entry_names
from foreword_lab.bench.row_names import row_names
from foreword_lab.bench.run import Options, run


@pytest.fixture
def installed(monkeypatch):
    """Set which modules can be found from now on."""

    def install(*modules: str) -> None:
        monkeypatch.setattr(
            registry, "find_spec", lambda name: object() if name in modules else None
        )

    return install


def test_each_engine_has_a_row_for_each_mode():
    assert (
        tuple(
            f"{engine}.{mode}" for engine in ("openvino", "llamacpp") for mode in MODES
        )
        == engines.NAMES
    )
    assert set(engines.NAMES) < set(ENTRIES)


def test_all_stands_for_the_installed_engines(installed):
    installed(*ENGINES["openvino"].modules)
    assert entry_names(("all",)) == tuple(f"openvino.{mode}" for mode in MODES)
    installed(*(module for package in ENGINES.values() for module in package.modules))
    assert entry_names(("all",)) == engines.NAMES
    assert entry_names(()) == ()


def test_missing_packages_are_named(installed):
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


def test_missing_engine_is_refused_before_any_work(installed):
    installed()
    for options in (
        Options(peers=("openvino",)),
        Options(methods=("openvino.generate",)),
        Options(peers=("vllm",)),
    ):
        with pytest.raises(InvalidRequest, match=r"install|cannot measure 'vllm'"):
            run(options, pytest.fail)


def test_peers_are_added_to_the_rows(installed):
    installed(*ENGINES["llamacpp"].modules)
    theirs = tuple(f"llamacpp.{mode}" for mode in MODES)
    names = row_names(None, quick=False)
    assert row_names(None, quick=False, others=("all",)) == (*names, *theirs)
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
    assert not set(engines.NAMES) & set(row_names(None, quick=False))


def test_versions_and_settings_are_those_of_measured_engines(monkeypatch):
    def version(name: str) -> str:
        if name == "openvino-genai":
            raise registry.PackageNotFoundError
        return "1.2"

    monkeypatch.setattr(registry, "version", version)
    assert (
        registry.versions(("plain", "transformers.lookup"))
        == registry.settings(("plain",))
        == {}
    )
    assert registry.versions(("llamacpp.lookup", "openvino.generate")) == {
        "openvino-genai": "unknown",
        "llama-cpp-python": "1.2",
    }
    assert set(registry.settings(("plain", *engines.NAMES))["openvino"]) == {
        engines.ASSISTED,
        engines.LOOKUP,
    }
