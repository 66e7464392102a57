#!/usr/bin/env bash
# Submits a run to a Ray cluster: docs/cluster/ray-job.sh http://HEAD:8265 CHECKOUT [SETTING=VALUE ...] [OPTION ...]
#
# CHECKOUT is its path on the cluster; options are those of train_grpo.sh. RAY_AUTH_TOKEN is the cluster's token. Ray
# shows a job's command to everybody with the token, and writes it to its logs. So keys are not given here. Export
# GEMINI_API_KEY before `ray start` on the head, where the job runs, and RAY_JOB_STOP_WAIT_TIME_S=120: after that many
# seconds, `ray job stop` kills a run that is saving. Ray's default is 3.
set -euo pipefail

refuse() {
    printf 'ray-job.sh: %s\n' "$1" >&2
    exit 2
}

if (($# < 2)); then refuse "give the address of the head's dashboard, and the path of the checkout"; fi
if [[ -z ${RAY_AUTH_TOKEN:-} ]]; then refuse "export RAY_AUTH_TOKEN, the token of the cluster"; fi
server="$1" checkout="$2"
shift 2
for word in "$checkout" "$@"; do
    if [[ $word == *KEY*=* || $word == *TOKEN*=* ]]; then refuse "${word%%=*} would be readable in the job's command"; fi
    # The head's shell reads the words again.
    if [[ $word == *[!A-Za-z0-9_./:=,@%+-]* ]]; then refuse "'$word' has blanks or signs: write it into train_grpo.sh"; fi
done
settings=()
while [[ ${1:-} == [A-Z]*=* ]]; do
    settings+=("$1")
    shift
done

export RAY_AUTH_MODE=token
# Ray sets this variable for a job. Workers that inherit it would all see all GPUs.
exec ray job submit --address "$server" --no-wait -- \
    env --chdir="$checkout" --unset=RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES "${settings[@]}" ./train_grpo.sh "$@"
