#!/usr/bin/env bash
# Trains gpt-oss-120b with GRPO and LoRA on one node of 8 GPUs, or a tiny gpt-oss without a GPU.
#
#   ./train_grpo.sh --tiny                     tiny gpt-oss, synthetic problems: 2 minutes on 2 cores, 8 GB
#   TRAIN_DATA=... EVAL_DATA=... ./train_grpo.sh                gpt-oss-120b: 8 x 80 GB GPUs, 30 GB host memory
#   LEARNING_RATE=3e-5 ./train_grpo.sh --steps 20               any setting can be a variable, which wins over this file
#   ./train_grpo.sh --config my.env                             settings in a file of your own
#   ./train_grpo.sh -- --eps_clip_low_high 0.2 0.28             any other OpenRLHF flag; the last value wins
#   ./train_grpo.sh --gpus 2                                    the same on 2 x 80 GB GPUs
#   MODEL=openai/gpt-oss-20b ./train_grpo.sh --gpus 2           gpt-oss-20b: two GPUs of 24 GB
#
# Options:
#   --tiny          the tiny run, on GPUs if .venv has the GPU stack: on 3, or on 2 or 1 if this machine has fewer
#   --config FILE   read settings from a file with lines like those below; they win over this file and --gpus, and a
#                   variable wins over them; --resume keeps both
#   --gpus N        a box with 8, 4, 2 or 1 GPUs (default: 8)
#   --check         check machine, patches, model, data, and settings, then exit; makes .venv and the tiny model
#                   first if they are missing
#   --plan          print what the settings mean (batches, lengths, steps, memory, disk, hours), then exit; needs
#                   neither GPUs nor data; the exit code is 2 if a GPU cannot hold the run, or if settings, data,
#                   reward, or environment are wrong
#   --dry-run       print the resolved command, then exit
#   --run-dir DIR   folder of this run (default: runs/NAME-TIME in the checkout)
#   --resume DIR    continue the run in DIR from its newest whole checkpoint, with its settings and those given now;
#                   "latest" is the newest run in runs/ that has not finished
#   --steps N       make N global steps; the schedule of the learning rate spans them. A resumed run keeps its number
#   --no-graphs     engines without CUDA graphs (ENFORCE_EAGER=1): slower, with fewer ways to fail
#   --help          this text, and all settings
#
# If RAY_ADDRESS is set, the run joins that Ray cluster of one or several nodes; otherwise it starts its own.
# Secrets are read from the environment and never written: GEMINI_API_KEY for the judge (or GOOGLE_API_KEY, which wins
# if both are set), and WANDB_API_KEY. Without a key for the judge, --tiny starts a local server instead, and says so.
# Exit codes: docs/runs.md, section "Exit codes".
exec "$(dirname "${BASH_SOURCE[0]}")/scripts/launch.sh" "$@" 3<<'RECIPE'

# The recipe: what the author of a run decides. docs/settings.md explains these and has the other settings; a line with
# one of them can be added anywhere below. --gpus and --tiny set other values for some lines, unless a line was edited.

# --- Model and data ---------------------------------------------------------------------------------------------------

MODEL=openai/gpt-oss-120b   # a folder, or a hub id that is already in the hub's cache
TRAIN_DATA=                 # .jsonl with prompt and label (empty: data/prepared/train.jsonl)
EVAL_DATA=                  # held-out problems (empty: eval.jsonl beside TRAIN_DATA)
REWARD=                     # your .py files with reward_func(queries, prompts, labels) (empty: the reward below)
ENVIRONMENT=                # several turns with tools: python, retrieval, a .py file (empty: single answers)

# --- GPUs: 2 x 2 for the engines, 4 for the actor ---------------------------------------------------------------------

NUM_ENGINES=2
ENGINE_TP=2                 # GPUs of an engine
ACTOR_GPUS=4
COLOCATE=0                  # 1: engines and actor share GPUs and take turns; their numbers must then be equal

# --- Rollouts: 8 prompts x 8 rollouts ---------------------------------------------------------------------------------

ROLLOUT_BATCH_SIZE=8        # prompts of a global step
N_SAMPLES_PER_PROMPT=8      # rollouts of a prompt: its group
PROMPT_MAX_LEN=1024         # tokens
GENERATE_MAX_LEN=3072       # tokens; a response that is cut before its final answer is wrong
TEMPERATURE=1.0
DYNAMIC_FILTERING=0         # 1: draw other prompts in place of those that all rollouts solve, or none

# --- Reward: CORRECTNESS_WEIGHT x correctness + QUALITY_WEIGHT x quality ----------------------------------------------

JUDGE=1                     # Gemini scores the quality; 0: the reward is correctness alone, and no model is called
CORRECTNESS_WEIGHT=0.6
QUALITY_WEIGHT=0.4          # the two add up to 1
# Tried in this order, and checked before a run. 3 Pro was shut down in March 2026
JUDGE_MODELS="gemini-3.1-pro-preview gemini-4-argon gemini-3.8-flash"
JUDGE_FALLBACK=correctness  # if all fail: correctness, mean_quality, or group

# --- GRPO -------------------------------------------------------------------------------------------------------------

ADVANTAGE_ESTIMATOR=dr_grpo
LOSS_AGGREGATION=token_mean # sequence_mean favors long wrong rollouts; constant is Dr. GRPO's
EPS_CLIP=0.2
# 0: saves a forward pass, and a graded answer needs no KL. Start with 0.001 if the reward can be gamed: docs/tuning.md
KL_COEF=0                   # above 0: KL from the policy that the run starts from, subtracted from the reward
PIPELINE=0                  # 1: sample the next batch while this one is trained on; the rollouts are a step old
TRAIN_BATCH_SIZE=64         # rollouts of an optimizer step: all of a global step, so each step is on-policy
NUM_EPISODES=50             # passes over the training problems
STEPS=                      # global steps, which the schedule below spans (empty: all episodes)

# --- Optimizer and adapter: LoRA on the attention; docs/tuning.md has adapters for the experts ------------------------

# The recipe that this one grew from has LEARNING_RATE=1e-6 and TRAIN_BATCH_SIZE=8, which is 8 optimizer steps on each
# batch of rollouts, and no CUDA graphs. docs/tuning.md says why this one differs.
LEARNING_RATE=1e-5
LR_WARMUP_RATIO=0.03        # of the run's optimizer steps
LR_SCHEDULER=cosine_with_min_lr
LORA_RANK=64
LORA_ALPHA=128
TARGET_MODULES="q_proj k_proj v_proj o_proj"

# --- Engines ----------------------------------------------------------------------------------------------------------

ENFORCE_EAGER=0             # 1: without CUDA graphs, which take memory and half a minute, and sample faster

# --- Evaluation, checkpoints, trackers --------------------------------------------------------------------------------

EVAL_STEPS=10               # also before the first step
EVAL_N_SAMPLES_PER_PROMPT=  # of each held-out problem, beside a greedy one (empty: 8)
SAVE_STEPS=5                # adapter and optimizer: a second each; a crash loses the steps since the newest
MAX_CHECKPOINTS=2           # the newest; the best is always kept
USE_WANDB=0                 # 1: log to W&B; its key is WANDB_API_KEY

RECIPE
