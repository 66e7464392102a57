#!/usr/bin/env bash
# Writes the locks anew from pyproject.toml: `scripts/lock.sh [uv pip compile options]`, for instance
# `scripts/lock.sh --upgrade`. Versions already locked are kept where they still fit.
#
# requirements/lock-cpu.txt and lock-gpu.txt are for the OpenRLHF that pyproject.toml pins. Another supported version has
# a folder, such as requirements/0.11.2: its pins.txt has the pins that differ, and its locks lie beside it.
#
# One lock serves Python 3.11 and 3.12: both are resolved, and a difference is an error to settle in
# requirements/constraints.txt. The hashes are those of the files for this platform. Other builds of a version, as some
# indexes have of torch, are thus refused. Afterwards the lists that are written by hand get hashes, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv="${UV:-.venv/bin/uv}"
if ! "$uv" --version >/dev/null 2>&1; then
    echo "lock.sh: no uv at $uv; run scripts/setup.sh first, or set UV to a uv program" >&2
    exit 1
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# with_hashes FILE PLATFORM: prints a list of packages with the hashes of their files for a platform.
with_hashes() {
    local python
    for python in 3.11 3.12; do
        "$uv" pip compile "$1" --no-deps --quiet --python-version "$python" --python-platform "$2" \
            --format pylock.toml --output-file "$scratch/pylock.${python/./}.toml" >/dev/null
    done
    .venv/bin/python - "$1" "$scratch"/pylock.*.toml <<'END'
import sys, tomllib
hashes = {}
for path in sys.argv[2:]:
    for package in tomllib.load(open(path, "rb"))["packages"]:
        for file in [*package.get("wheels", []), *filter(None, [package.get("sdist")])]:
            hashes.setdefault(f"{package['name']}=={package['version']}", set()).add(file["hashes"]["sha256"])
for line in open(sys.argv[1]):
    name = line.split()[0]
    print(line.rstrip() if name == "#" else " --hash=sha256:".join([name, *sorted(hashes[name])]))
END
}

# lock STACK FOLDER [PINS]: writes the lock of a stack into a folder.
lock() {
    local stack="$1" folder="$2" options=() glibc platform python resolved old
    cp "requirements/overrides-$stack.txt" "$scratch/overrides.txt"
    cp requirements/constraints.txt "$scratch/constraints.txt"
    if (($# > 2)); then
        options=(--override "$3")
        # A pin takes the place of an override and of a constraint of the same package.
        sed -n 's/^\([a-z0-9-]*\)[=<].*/^\1[=<]/p' "$3" >"$scratch/pinned.txt"
        sed -n '/^[a-z]/p' "requirements/overrides-$stack.txt" | grep -v -f "$scratch/pinned.txt" >"$scratch/overrides.txt"
        sed -n '/^[a-z]/p' requirements/constraints.txt | grep -v -f "$scratch/pinned.txt" >"$scratch/constraints.txt"
    fi
    # The oldest glibc that each stack's vLLM wheel supports, or the one that the pins name.
    glibc=$([[ $stack == cpu ]] && echo 28 || echo 31)
    if (($# > 2)); then glibc=$(sed -n 's/^# glibc 2\.\([0-9]*\) .*/\1/p' "$3" | grep . || echo "$glibc"); fi
    platform="x86_64-manylinux_2_$glibc"
    # A new folder starts from the versions of the others.
    old="$folder/lock-$stack.txt"
    if [[ ! -f $old ]]; then old="requirements/lock-$stack.txt"; fi
    for python in 3.11 3.12; do
        resolved="$scratch/$python.txt"
        if [[ -f $old ]]; then cp "$old" "$resolved"; fi
        "$uv" pip compile pyproject.toml --extra "$stack" --extra dev --quiet \
            --override "$scratch/overrides.txt" "${options[@]}" --constraint "$scratch/constraints.txt" \
            --python-version "$python" --python-platform "$platform" \
            --no-annotate --no-header --no-emit-index-url --output-file "$resolved" "${extra[@]}" >/dev/null
    done
    if ! diff "$scratch/3.11.txt" "$scratch/3.12.txt" >&2; then
        echo "lock.sh: Python 3.11 (<) and 3.12 (>) resolve differently; add a line to requirements/constraints.txt" >&2
        exit 1
    fi
    {
        echo "# Written by scripts/lock.sh; installed by scripts/setup.sh --$stack with --no-deps."
        grep -v '^#' "$scratch/3.11.txt"
    } >"$scratch/list.txt"
    with_hashes "$scratch/list.txt" "$platform" >"$folder/lock-$stack.txt"
    rm "$scratch"/*
    echo "lock.sh: $folder/lock-$stack.txt has $(grep -vc '^#' "$folder/lock-$stack.txt") packages"
}

extra=("$@")
for stack in cpu gpu; do
    lock "$stack" requirements
    for pins in requirements/*/pins.txt; do lock "$stack" "${pins%/*}" "$pins"; done
done
for list in requirements/{uv,verifiers}.txt requirements/trackio.txt requirements/*/trackio.txt; do
    with_hashes "$list" x86_64-manylinux_2_28 >"$scratch/list.txt"
    cp "$scratch/list.txt" "$list"
done
