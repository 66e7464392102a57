#!/usr/bin/env bash
# A run on the nodes of a Slurm job: sbatch docs/cluster/slurm.sh [flags of train_grpo.sh], from the checkout.
#
# The checkout with its .venv is on a file system that all nodes share. Keys come from the environment of sbatch:
# sbatch docs/cluster/slurm.sh --vllm_num_engines 6 --steps 100. Set the numbers below for your nodes.
#SBATCH --job-name=grpo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@180
# --signal: 180 s before the job's time is up, the run gets SIGTERM, and saves.
set -euo pipefail

cd "$SLURM_SUBMIT_DIR"
# shellcheck source=scripts/env.sh
source scripts/env.sh

# Everybody who has the token can run code here. It is passed on in the environment, which other users cannot read.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN="${RAY_AUTH_TOKEN:-$(openssl rand -hex 32)}"

# The first address besides loopback. If a node has several networks, set HEAD_ADDRESS to its address in the right one.
read -r address _ <<<"${HEAD_ADDRESS:-$(hostname --all-ip-addresses)}"
ray start --head --node-ip-address="$address" --port=6379 --include-dashboard=false --disable-usage-stats
export RAY_ADDRESS="$address:6379"

others=$((SLURM_JOB_NUM_NODES - 1))
if ((others)); then
    # In a subshell, so that it is no child of the launcher. Only the launcher needs the judge's key.
    (env --unset=GEMINI_API_KEY --unset=GOOGLE_API_KEY srun --nodes="$others" --ntasks="$others" \
        --exclude="$SLURMD_NODENAME" ray start --address="$RAY_ADDRESS" --disable-usage-stats --block &)
fi
until [[ $(python -c 'import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))') == "$SLURM_JOB_NUM_NODES" ]]; do
    sleep 5
done

# Slurm ends Ray on all nodes with the job.
exec ./train_grpo.sh "$@"
