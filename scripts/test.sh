#!/usr/bin/env bash
# Checks everything on this machine: scripts/test.sh [--fast | --other | --gpu | --gpu-stack] [pytest arguments]
#
# Setup, lint, the installed patches, then the tests, and the types beside them. It stops at the first stage that fails.
# If all is well, the last line is pytest's. --fast skips the tests that start Ray or vLLM (minutes).
# --other tests what the others leave out: in a temporary copy of the checkout (9 GB), the other supported OpenRLHF with
# its packages, by the unit tests of what depends on them and a tiny run; the adapter of the verifiers package; and a run
# in the shape of train_grpo.sh, with two engines of two workers and four ranks (10 GB of memory).
# --gpu runs setup, patches, and tests/gpu alone, in one process. Without a GPU its tests are skipped by name.
# --gpu-stack needs no GPU: it clones the last commit into a temporary folder (12 GB), installs the stack for GPUs there,
# and tests all imports, the trainer, and that all kernels compile (10 minutes on 2 cores, beside the download).
# $OPENRLHF_VERSION selects the lock, as in scripts/setup.sh.
# pytest arguments are passed on: scripts/test.sh --fast tests/reward -k boxed
# Tests run in up to four processes, one more than there are cores. All tests of a file run in the same process.
# -n 0 uses one process.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pytest_arguments=()
gpu=0 gpu_stack=0 other=0
for argument in "$@"; do
    case "$argument" in
        --fast) pytest_arguments+=(-m "not stack") ;;
        --other) other=1 ;;
        --gpu) gpu=1 ;;
        --gpu-stack) gpu_stack=1 ;;
        -h | --help)
            sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        *) pytest_arguments+=("$argument") ;;
    esac
done

# A signal ends everything that the tests started: it has this variable, even in a session of its own. Runs get the time
# to end what they started.
export GRPO_TESTS="$$-$RANDOM$RANDOM"
end_all() {
    local signal files tries
    trap '' HUP INT TERM
    for signal in TERM KILL; do
        for ((tries = 0; tries < 150; tries++)); do
            mapfile -t files < <(env --unset=GRPO_TESTS grep --null-data --line-regexp --files-with-matches --no-messages \
                "GRPO_TESTS=$GRPO_TESTS" /proc/[0-9]*/environ)
            if ((${#files[@]} == 0)); then break 2; fi
            if ((tries == 0)); then kill "-$signal" "${files[@]//[!0-9]/}" 2>/dev/null || true; fi
            sleep 0.1
        done
    done
    exit "$1"
}
trap 'end_all 129' HUP
trap 'end_all 130' INT
trap 'end_all 143' TERM

# Runs a command so that a signal need not wait for its end. With job control it does not ignore Ctrl-C.
run() {
    set -m
    "$@" &
    set +m
    wait $!
}

# Runs one stage, and prints how long it took.
stage() {
    local name="$1" begin=$SECONDS status=0
    shift
    printf '== %s\n' "$name"
    run "$@" || status=$?
    if ((status)); then
        printf '== %s failed (exit %d) after %d s\n' "$name" "$status" $((SECONDS - begin)) >&2
        exit "$status"
    fi
    printf '== %s: %d s\n' "$name" $((SECONDS - begin))
}

# Every shell script of the checkout, recognized by its first line.
shell_scripts() {
    local file first
    while IFS= read -r file; do
        IFS= read -r first <"$file" || true
        case "$first" in '#!'*sh | '# shellcheck shell='*) printf '%s\n' "$file" ;; esac
    done < <(find . \( -name '.?*' -not -name .ci -o -name runs -o -name __pycache__ \) -prune \
        -o -type f -size -200k -not -name '*.py' -print | LC_ALL=C sort)
}

lint_shell() {
    local files
    mapfile -t files < <(shell_scripts)
    shellcheck --external-sources "${files[@]}"
}

# Copies this checkout, and installs another version of OpenRLHF there.
install_other() {
    git ls-files -z --cached --others --exclude-standard |
        tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory "$1"
    env --chdir="$1" --unset=PYTHONPATH OPENRLHF_VERSION="$2" scripts/setup.sh --cpu --quiet
}

test_other() {
    env --chdir="$1" --unset=PYTHONPATH bash -c 'source scripts/env.sh && pytest -q --no-header -n 0 "$@"' bash "${@:2}"
}

# The package is not in the locks: it excludes the locked mcp. A folder of its own leaves the environment as it is.
of_verifiers() {
    local folder="$scratch/verifiers"
    uv pip install --quiet --python .venv/bin/python --no-deps --target "$folder" --requirement requirements/verifiers.txt &&
        PYTHONPATH="$folder:$PYTHONPATH" pytest -q --no-header -n 0 \
            tests/grpo/environments/test_verifiers_environment.py
}

if ((gpu_stack)); then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    stage "clone" git clone --quiet . "$scratch/checkout"
    cd "$scratch/checkout"
    stage "setup" scripts/setup.sh --gpu
    # shellcheck source=scripts/env.sh
    source scripts/env.sh
    stage "patches" python -m patches verify
    printf '== tests\n'
    export DS_ACCELERATOR=cpu
    run pytest -n "$(nproc)" "${pytest_arguments[@]}" tests/scripts/setup/test_imports.py \
        tests/benchmarks/test_compiled.py tests/grpo/{checkpoint,hooks,lora,model,stack,train}
    exit
fi
stage "setup" scripts/setup.sh
# shellcheck source=scripts/env.sh
source scripts/env.sh
if ((gpu)); then
    stage "patches" python -m patches verify
    printf '== tests\n'
    exec pytest -n 0 "${pytest_arguments[@]}" tests/gpu
fi
if ((other)); then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    stage "verifiers" of_verifiers
    stage "the recipe's shape" pytest -q --no-header -n 0 --recipe-shape tests/stack/test_doors.py tests/stack/test_options.py
    for folder in patches/openrlhf-*; do
        version="${folder##*-}" copy="$scratch/$version"
        if [[ -n $(compgen -G ".venv/lib/python3.*/site-packages/openrlhf-$version.dist-info") ]]; then continue; fi
        mkdir "$copy"
        stage "setup of OpenRLHF $version" install_other "$copy" "$version"
        stage "tests with OpenRLHF $version" test_other "$copy" "${pytest_arguments[@]}" \
            tests/grpo/{hooks,lora,model,stack,train} tests/patches/test_real_series.py
        stage "tiny run with OpenRLHF $version" test_other "$copy" tests/stack/test_end_to_end.py
    done
    exit
fi
stage "ruff check" ruff check .
stage "ruff format" ruff format --check .
stage "shellcheck" lint_shell
stage "patches" python -m patches verify
# The libraries' types differ between the supported versions of OpenRLHF; the code has those of the default one.
default="$(sed -n 's/^ *"openrlhf==\(.*\)",$/\1/p' pyproject.toml)"
if compgen -G ".venv/lib/python3.*/site-packages/openrlhf-$default.dist-info" >/dev/null; then
    output=$(mktemp)
    trap 'rm -f "$output"' EXIT
    stage "mypy" mypy patches grpo reward data eval scripts benchmarks >"$output" 2>&1 & # beside the tests, which often wait
    types=$!
fi
# Not a stage: pytest's closing line must be the last one. tests/conftest.py has the order.
export PYTHONPATH="$PYTHONPATH:$PWD/tests/startup"
processes=$(($(env -u OMP_NUM_THREADS nproc) + 1)) # one more than cores: many tests wait
# Ray's workers have a niceness of 15 by default, so they starve beside other tests.
export RAY_worker_niceness=0
# On busy cores, the threads of a tiny matrix product mostly wait for each other. Tests that need threads set their number.
export OMP_NUM_THREADS=1
printf '== tests\n'
failed=0
run pytest --durations=10 -n $((processes < 4 ? processes : 4)) --no-loadscope-reorder "${pytest_arguments[@]}" || failed=$?
if [[ -n ${types:-} ]] && ! wait "$types"; then
    cat "$output" >&2
    failed=1
fi
(exit "$failed")
