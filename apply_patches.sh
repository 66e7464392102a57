#!/usr/bin/env bash
# Apply, inspect or revert the patches on the installed OpenRLHF: ./apply_patches.sh --help
# The Python is $PYTHON, else .venv/bin/python of this checkout, else python3.
set -euo pipefail
checkout=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    if [[ -x $checkout/.venv/bin/python ]]; then PYTHON=$checkout/.venv/bin/python; fi
fi
# -P keeps an `openrlhf` or `patches` folder in the current directory from being taken for the real one.
PYTHONPATH=$checkout exec "$PYTHON" -P -m patches "$@"
