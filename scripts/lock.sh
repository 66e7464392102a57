#!/usr/bin/env bash
# Writes requirements/lock-cpu.txt and lock-gpu.txt anew from pyproject.toml: `scripts/lock.sh [uv pip compile options]`,
# for instance `scripts/lock.sh --upgrade`. Versions already locked are kept where they still fit.
#
# One lock serves Python 3.11 and 3.12: both are resolved, and a difference is an error to settle in
# requirements/constraints.txt. No hashes: torch comes as different builds of one version, depending on the index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv="${UV:-.venv/bin/uv}"
if ! "$uv" --version >/dev/null 2>&1; then
    echo "lock.sh: no uv at $uv; run scripts/setup.sh first, or set UV to a uv program" >&2
    exit 1
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

for stack in cpu gpu; do
    lock="requirements/lock-$stack.txt"
    # The oldest glibc that each stack's vLLM wheel supports.
    platform=$([[ $stack == cpu ]] && echo x86_64-manylinux_2_28 || echo x86_64-manylinux_2_31)
    for python in 3.11 3.12; do
        resolved="$scratch/$stack-$python.txt"
        if [[ -f $lock ]]; then cp "$lock" "$resolved"; fi
        "$uv" pip compile pyproject.toml --extra "$stack" --extra dev --quiet \
            --override "requirements/overrides-$stack.txt" --constraint requirements/constraints.txt \
            --python-version "$python" --python-platform "$platform" \
            --no-annotate --no-header --no-emit-index-url --output-file "$resolved" "$@" >/dev/null
    done
    if ! diff "$scratch/$stack-3.11.txt" "$scratch/$stack-3.12.txt" >&2; then
        echo "lock.sh: Python 3.11 (<) and 3.12 (>) resolve differently; add a line to requirements/constraints.txt" >&2
        exit 1
    fi
done
for stack in cpu gpu; do
    {
        echo "# Written by scripts/lock.sh; installed by scripts/setup.sh --$stack with --no-deps."
        grep -v '^#' "$scratch/$stack-3.11.txt"
    } >"$scratch/lock"
    mv "$scratch/lock" "requirements/lock-$stack.txt"
    echo "lock.sh: requirements/lock-$stack.txt has $(grep -vc '^#' "requirements/lock-$stack.txt") packages"
done
