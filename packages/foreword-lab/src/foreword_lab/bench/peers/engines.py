"""The engines that the benchmark compares with: names and what they need.

Plain data, so that the command line knows the names at once.
"""

from dataclasses import dataclass

GENERATE = "generate"
ASSISTED = "assisted"
LOOKUP = "lookup"
MODES = (GENERATE, ASSISTED, LOOKUP)
"""Modes (one token at a time, draft model, prompt lookup): second part of names."""
COMPILED = "transformers.compiled"
"""Entry of transformers with a static cache and torch.compile, which takes a minute."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Package:
    """Requirements of an engine."""

    modules: tuple[str, ...]
    distribution: str
    """Distribution whose version the report names."""
    install: str
    entry_module: str
    """Module of Foreword that defines `entry` and SETTINGS."""
    dtype: str | None = None
    """Dtype of the matrices that it gets; None = the dtype of the run."""


ENGINES = {
    "openvino": Package(
        ("openvino", "openvino_genai", "openvino_tokenizers", "gguf"),
        "openvino-genai",
        "pip install 'foreword[peers]'",
        "foreword_lab.bench.peers.openvino",
        "float16",
    ),
    "llamacpp": Package(
        ("gguf", "llama_cpp"),
        "llama-cpp-python",
        "pip install 'foreword[peers]' llama-cpp-python   (compiled on installation, "
        "which takes a while)",
        "foreword_lab.bench.peers.llamacpp",
    ),
}
NAMES = tuple(f"{engine}.{mode}" for engine in ENGINES for mode in MODES)
"""Name of every entry, such as "openvino.assisted"."""
