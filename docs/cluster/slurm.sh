#!/usr/bin/env bash
# A run on the nodes of a Slurm job: sbatch docs/cluster/slurm.sh [options of train_grpo.sh], from the checkout.
#
# The checkout with its .venv is on a file system that all nodes share. Settings and keys come from the environment of
# sbatch: NUM_ENGINES=6 sbatch docs/cluster/slurm.sh --steps 100. Set the numbers below for your nodes. Keys stay on the
# first node. If rewards or environments of your own need some: PASS_TO_ALL_NODES="NAME NAME".
#SBATCH --job-name=grpo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --no-kill
#SBATCH --signal=B:TERM@180
# --no-kill: a job that loses a node continues, and the run restarts if the other nodes have enough GPUs. --signal: 180 s
# before its time is up, Slurm sends SIGTERM to this script alone, and the run saves.
set -euo pipefail

PORT=6379
START_SECONDS=300

cd "$SLURM_SUBMIT_DIR"
# shellcheck source=scripts/env.sh
source scripts/env.sh

# Everybody who has the token can run code here. It is passed on in the environment, which other users cannot read.
export RAY_AUTH_MODE=token
if [[ -z ${RAY_AUTH_TOKEN:-} ]]; then RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"; fi
export RAY_AUTH_TOKEN
export RAY_enable_worker_prestart=0

# The first address besides loopback. If a node has several networks, set HEAD_ADDRESS to its address in the right one.
read -r address _ <<<"${HEAD_ADDRESS:-$(hostname --all-ip-addresses)}"
export RAY_ADDRESS="$address:$PORT"

nodes_that_joined() {
    python -c 'import ray; ray.init(log_to_driver=False); print(sum(node["Alive"] for node in ray.nodes()))' 2>/dev/null
}

# This script runs on the first node, which becomes Ray's head and the launcher's.
RAY_ADDRESS="" ray start --head --node-ip-address="$address" --port="$PORT" --include-dashboard=false \
    --disable-usage-stats
others=$((SLURM_JOB_NUM_NODES - 1))
if ((others)); then
    secrets="$(python -c 'import os
from grpo.stack.secrets import is_secret
kept = {"RAY_AUTH_TOKEN", *os.environ.get("PASS_TO_ALL_NODES", "").split()}
print("\n".join(name for name in os.environ if is_secret(name) and name not in kept))')"
    mapfile -t without < <(sed -n 's/^./--unset=&/p' <<<"$secrets")
    env "${without[@]}" srun --no-kill --kill-on-bad-exit=0 --nodes="$others" --ntasks="$others" \
        --exclude="$SLURMD_NODENAME" ray start --address="$RAY_ADDRESS" --disable-usage-stats --block &
fi

until [[ $(nodes_that_joined) == "$SLURM_JOB_NUM_NODES" ]]; do
    if ((SECONDS > START_SECONDS)); then
        echo "not all $SLURM_JOB_NUM_NODES nodes joined Ray within $START_SECONDS s" >&2
        exit 2
    fi
    sleep 5
done

NODES="$SLURM_JOB_NUM_NODES" ./train_grpo.sh "$@" &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
wait "$run" || code=$?
# A signal ends `wait`, but not the run, which is saving.
while kill -0 "$run" 2>/dev/null; do
    code=0
    wait "$run" || code=$?
done
# Slurm ends Ray on all nodes with the job.
exit "$code"
