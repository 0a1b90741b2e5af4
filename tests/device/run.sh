#!/usr/bin/env bash
# Measure everything about one GPU in ten minutes: bash tests/device/run.sh
#
# The machine needs no network. It needs a C compiler and a Python from 3.11 on that has
# torch with CUDA (2.11 or newer), triton, transformers (5.16 or newer), jaxtyping, numpy,
# rich, safetensors and typer; for the tests pytest, pytest-timeout and hypothesis; for the
# servers fastapi, uvicorn, prometheus-client, python-multipart and httpx2, and
# openai and accelerate for the one of transformers. A step that lacks a package fails alone.
# Packages can travel as wheels, with all that they need, in the folder WHEELS: they are
# installed into a folder of this run. Foreword itself runs from the checkout.
#
#   OUT      folder of the results (out/device): summary.json, log.txt
#   DEVICE   cuda; cpu tries every command line on tiny models
#   LIMIT_S  seconds in all (570): a step that no longer fits is skipped, and the summary says so
#   WHEELS   folder of wheels (.whl)
#   PYTHON   the Python (python3)
#
# Arguments: names of steps (steps.txt), by default all; or --list.
set -u
cd "$(dirname "$0")/../.." || exit 1
PYTHON=${PYTHON:-python3}
WHEELS=${WHEELS:-.whl}
export OUT=${OUT:-out/device} DEVICE=${DEVICE:-cuda} LIMIT_S=${LIMIT_S:-570}
site=$(mktemp -d) || exit 1
trap 'rm -rf "$site"' EXIT
if compgen -G "$WHEELS/*.whl" >/dev/null; then
	"$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl || exit 1
fi
PYTHONPATH=$(printf '%s:' "$PWD"/packages/*/src)$site${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
"$PYTHON" recipes/device/measure.py --site "$site" "$@"
