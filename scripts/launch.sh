#!/usr/bin/env bash
# Called by train_grpo.sh: sets up the checkout, then starts the launcher with the same words, which are the script's
# flags, `--`, and those of the command line.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"

main() {
    local word is_run=1 shows_help=0
    for word; do
        case "$word" in
            -h | --help) shows_help=1 ;;
            --check | --plan | --dry-run) is_run=0 ;;
        esac
    done
    # Setup can take minutes: wrong words are refused before it, once there are the packages that know the flags.
    if [[ -n $(compgen -G "$here/.venv/lib/python3.*/site-packages/psutil") ]]; then
        PYTHONPATH="$here" "$here/.venv/bin/python" -P -m grpo.flags "$@" || exit
    elif ((shows_help)); then
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$here/train_grpo.sh"
        printf '\nThis lists all flags after ./scripts/setup.sh; so does docs/flags.md.\n'
    fi
    if ((shows_help)); then exit; fi
    refuse_another_openrlhf
    if ((is_run)) || [[ ! -d $here/.venv ]]; then "$here/scripts/setup.sh" --quiet; fi
    # shellcheck source=scripts/env.sh
    source "$here/scripts/env.sh"
    # While a run holds this lock, setup changes no packages.
    if ((is_run)) && [[ -f $here/.venv/pyvenv.cfg ]]; then
        exec 8<"$here/.venv/pyvenv.cfg"
        flock --shared 8
    fi
    exec python -m grpo.launch "$@"
}

# Setup would exchange the packages of this checkout, perhaps under a run that uses them
refuse_another_openrlhf() {
    local found
    found="$(compgen -G "$here/.venv/lib/python3.*/site-packages/openrlhf-*.dist-info")" || return 0
    found="${found##*/openrlhf-}"
    found="${found%.dist-info}"
    if [[ -n ${OPENRLHF_VERSION:-} && $OPENRLHF_VERSION != "$found" ]]; then
        "$here/scripts/setup.sh" --show-stack >/dev/null || exit  # refuses a version that is not supported
        printf 'train_grpo.sh: %s\n' "OPENRLHF_VERSION is $OPENRLHF_VERSION, but .venv has OpenRLHF $found: unset it, \
or run OPENRLHF_VERSION=$OPENRLHF_VERSION ./scripts/setup.sh" >&2
        exit 2
    fi
}

main "$@"
