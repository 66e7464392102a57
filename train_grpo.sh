#!/usr/bin/env bash
# Trains gpt-oss-120b with GRPO and LoRA on one node of 8 GPUs, or a tiny gpt-oss without a GPU.
#
#   ./train_grpo.sh --tiny                     tiny gpt-oss, synthetic problems: 3 minutes on 2 cores, 12 GB
#   TRAIN_DATA=... EVAL_DATA=... ./train_grpo.sh                gpt-oss-120b: 8 x 80 GB GPUs, 64 GB host memory
#   LEARNING_RATE=2e-6 ./train_grpo.sh --steps 20               any variable of this script can be set in the environment
#   ./train_grpo.sh -- --eps_clip_low_high 0.2 0.28             any other OpenRLHF flag; the last value wins
#   ./train_grpo.sh --gpus 2                                    the same on 2 x 80 GB GPUs
#   MODEL=openai/gpt-oss-20b ./train_grpo.sh --gpus 1           gpt-oss-20b: one GPU of 48 GB
#
# Options:
#   --tiny          the tiny run, on GPUs if .venv has the GPU stack: on 4, or on 2 or 1 if this machine has fewer
#   --gpus N        a box with 8, 4, 2 or 1 GPUs (default: 8)
#   --check         check machine, patches, model, data and configuration, then exit; installs missing packages and
#                   makes the tiny model first if needed
#   --plan          print what the configuration means (batches, lengths, steps, nodes, memory, disk), then exit; with
#                   code 2 if a GPU cannot hold it, or nodes, settings, data, reward or environment are wrong; it does
#                   not look at this machine's GPUs, memory or folders, and data that is missing is only named
#   --dry-run       print the resolved command, then exit
#   --run-dir DIR   folder of this run (default: runs/NAME-TIME in the checkout)
#   --resume DIR    continue the run in DIR from its newest checkpoint, with the settings given now; "latest" is the
#                   newest run of this NAME in runs/
#   --from-step N   with --resume: continue from step N instead of the newest; newer checkpoints are moved to
#                   checkpoints/set-aside-TIME
#   --steps N       stop after N global steps; the schedule of the learning rate stays that of all episodes
#   --help          this text
#
# If RAY_ADDRESS is set, the run joins that Ray cluster of one or several nodes; otherwise it starts its own.
# Secrets are read from the environment and never written: GEMINI_API_KEY for the judge (or GOOGLE_API_KEY, which wins
# if both are set), and WANDB_API_KEY. Without a key for the judge, --tiny starts a local server instead, and says so.
# Exit code: 0 done, 1 done, but metrics or samples could not be written, 2 refused: nothing was started or restarted,
# 3 ended by a rule, 130 Ctrl-C, 143 SIGTERM, otherwise that of the driver.
set -euo pipefail

# The braces make bash read all of this file before it runs any of it: it may be edited while a run starts.
{

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
TINY_DIR="$HERE/.cache/tiny-model"
TINY=0 TINY_TOOLS="" GPUS="" MODE=run RUN_DIR="" RESUME="" FROM_STEP="" EXTRA_ARGS=() AGAIN=()

refuse() {
    printf 'train_grpo.sh: %s\n' "$1" >&2
    exit 2
}

# Prints the letters of a word in the order of the alphabet, each once
letters() { fold -w 1 <<<"$1" | sort -u | tr -d '\n'; }

# Prints how many GPUs of this machine a run may use
count_gpus() {
    if [[ -v CUDA_VISIBLE_DEVICES ]]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
    else
        nvidia-smi -L 2>/dev/null | grep -c '^GPU'
    fi
}

while (($#)); do
    case "$1" in
        --tiny) TINY=1 AGAIN+=(--tiny) ;;
        --check | --plan | --dry-run)
            [[ $MODE == run ]] || refuse "--$MODE and $1 cannot be combined"
            MODE="${1#--}"
            ;;
        --gpus=* | --run-dir=* | --resume=* | --from-step=* | --steps=*)
            set -- "${1%%=*}" "${1#*=}" "${@:2}"
            continue
            ;;
        --gpus | --run-dir | --resume | --from-step | --steps)
            (($# > 1)) || refuse "$1 needs a value; see ./train_grpo.sh --help"
            case "$1" in
                --gpus) GPUS="$2" AGAIN+=("${@:1:2}") ;;
                --run-dir) RUN_DIR="$2" ;;
                --resume) RESUME="$2" ;;
                --from-step) FROM_STEP="$2" ;;
                --steps) STEPS="$2" AGAIN+=("${@:1:2}") ;;
            esac
            shift
            ;;
        --)
            shift
            EXTRA_ARGS=("$@")
            break
            ;;
        -h | --help)
            sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        [A-Z]*=*) refuse "$1 must come first: $1 ./train_grpo.sh" ;;
        *)
            VARIABLE="${1#--}" VARIABLE="${VARIABLE%%=*}" VARIABLE="${VARIABLE//-/_}" VARIABLE="${VARIABLE^^}"
            if grep -q "\"\${$VARIABLE:\?=" "${BASH_SOURCE[0]}"; then
                refuse "$1 is a variable, not an option: $VARIABLE=VALUE ./train_grpo.sh"
            fi
            for OPTION in --tiny --gpus --check --plan --dry-run --run-dir --resume --from-step --steps --help; do
                if [[ $(letters "${1%%=*}") == "$(letters "$OPTION")" ]]; then
                    refuse "unknown option $1; did you mean $OPTION?"
                fi
            done
            refuse "unknown option $1; OpenRLHF flags go after --, options are in ./train_grpo.sh --help"
            ;;
    esac
    shift
done

if [[ -n $RESUME && -n $RUN_DIR ]]; then refuse "--resume continues in its own folder; remove --run-dir"; fi
if [[ -n $FROM_STEP && ! $FROM_STEP =~ ^[0-9]+$ ]]; then refuse "--from-step is '$FROM_STEP'; give a number"; fi

# The tiny run fits the machine: it takes 4 GPUs, and without --gpus a machine with fewer is a smaller box
if ((TINY)); then
    STACK="$("$HERE/scripts/setup.sh" --show-stack)"
    if [[ $STACK == gpu && -z $GPUS && -z ${RAY_ADDRESS-} ]]; then
        case "$(count_gpus)" in 1) GPUS=1 ;; 2 | 3) GPUS=2 ;; esac
    fi
fi

# --- Smaller boxes: other values for the variables below, nothing else ------------------------------------------------

# Engines and actor that share GPUs have the whole box each
if [[ ${COLOCATE-} == 1 ]]; then
    case "${GPUS:-$((TINY ? 0 : 8))}" in
        8) : "${NUM_ENGINES:=4}" "${ENGINE_TP:=2}" "${ACTOR_GPUS:=8}" ;;
        4) : "${NUM_ENGINES:=2}" "${ENGINE_TP:=2}" "${ACTOR_GPUS:=4}" ;;
        2) : "${NUM_ENGINES:=2}" "${ENGINE_TP:=1}" "${ACTOR_GPUS:=2}" ;;
    esac
fi
if [[ -z $GPUS ]]; then GPUS=8; fi
case "$GPUS" in
    8) ;; # the defaults below
    4) : "${NUM_ENGINES:=1}" "${ENGINE_TP:=2}" "${ACTOR_GPUS:=2}" ;;
    2) : "${NUM_ENGINES:=1}" "${ENGINE_TP:=1}" "${ACTOR_GPUS:=1}" "${ACTOR_SHARD:=none}" ;;
    1) : "${NUM_ENGINES:=1}" "${ENGINE_TP:=1}" "${ACTOR_GPUS:=1}" "${ACTOR_SHARD:=none}" "${COLOCATE:=1}" ;;
    *) refuse "--gpus is '$GPUS': give 8, 4, 2 or 1, or set NUM_ENGINES, ENGINE_TP, ACTOR_GPUS and COLOCATE" ;;
esac

# --- The tiny run: other values for the variables below, nothing else -------------------------------------------------

if ((TINY)); then
    : "${NAME:=tiny}"
    TINY_FORMAT=mxfp4
    if [[ $STACK == cpu ]]; then TINY_FORMAT=bf16; fi # vLLM cannot load MXFP4 on CPU
    # A built-in environment gets a tiny model that uses its tools unreliably, and problems that need them
    if [[ ${ENVIRONMENT-} =~ ^(python|retrieval)$ && -z ${MODEL-}${TRAIN_DATA-} ]]; then
        TINY_TOOLS="$TINY_DIR/$ENVIRONMENT"
        : "${MODEL:=$TINY_TOOLS/mxfp4}" "${ENGINE_MODEL:=$TINY_TOOLS/$TINY_FORMAT}"
        : "${TRAIN_DATA:=$TINY_TOOLS/data/train.jsonl}" "${PROMPT_MAX_LEN:=208}" "${TURN_LIMIT:=3}"
        if [[ $ENVIRONMENT == retrieval ]]; then : "${LIBRARY:=$TINY_TOOLS/data/library.jsonl}"; fi
    fi
    : "${MODEL:=$TINY_DIR/mxfp4}" "${ENGINE_MODEL:=$TINY_DIR/$TINY_FORMAT}"
    : "${TRAIN_DATA:=$TINY_DIR/train.jsonl}"
    : "${NUM_ENGINES:=2}" "${ENGINE_TP:=1}" "${ACTOR_GPUS:=2}"
    : "${ROLLOUT_BATCH_SIZE:=16}" "${N_SAMPLES_PER_PROMPT:=8}" "${TRAIN_BATCH_SIZE:=64}"
    : "${MICRO_TRAIN_BATCH_SIZE:=16}" "${MICRO_ROLLOUT_BATCH_SIZE:=16}"
    : "${PROMPT_MAX_LEN:=128}" "${GENERATE_MAX_LEN:=48}"
    : "${EVAL_N_SAMPLES_PER_PROMPT:=1}"
    : "${LEARNING_RATE:=2e-3}" # a new adapter on a model of a few million parameters needs large steps
    : "${LR_SCHEDULER:=constant_with_warmup}" "${LR_WARMUP_RATIO:=0.005}" # one optimizer step
    : "${LORA_RANK:=8}" "${LORA_ALPHA:=16}"
    : "${PERSISTENCE_THRESHOLD:=0}" # partitions everything, as with the 120b
    : "${NUM_EPISODES:=1}" "${STEPS:=10}" "${SAVE_STEPS:=5}"
fi

# --- Hyperparameters --------------------------------------------------------------------------------------------------

# Model and data
: "${MODEL:=openai/gpt-oss-120b}" # a folder, or a hub id that is already in the hub's cache
: "${ENGINE_MODEL:=$MODEL}"       # what the engines load
: "${TRAIN_DATA:=$HERE/data/prepared/train.jsonl}"
# Held-out problems: by default eval.jsonl beside the training problems, as data.prepare writes it
: "${EVAL_DATA:=$(dirname -- "$TRAIN_DATA")/eval.jsonl}"
# The reward: this project's (below), or .py files of your own with reward_func(queries, prompts, labels), separated by
# blanks. REWARD_WEIGHTS has a weight for each of them (empty: 1); the reward is their weighted sum
: "${REWARD:=$HERE/reward/reward_func.py}" "${REWARD_WEIGHTS:=}"
: "${NAME:=$(basename "$MODEL")}"

# GPUs: 2 x 2 for the engines, 4 for the actor. With COLOCATE=1 engines and actor share GPUs and take turns; the counts
# must be equal. GPU_GB is the memory of a GPU, for plans on another machine (empty: that of this machine's GPUs, or 80)
: "${NUM_ENGINES:=2}" "${ENGINE_TP:=2}" "${ACTOR_GPUS:=4}" "${COLOCATE:=0}" "${GPU_GB:=}"
# NODES machines of GPUS_PER_NODE GPUs (empty: those of --gpus) form the Ray cluster at RAY_ADDRESS. The counts above are
# those of the whole run. An engine never spans nodes. --plan says who runs where. See docs/cluster.md
if [[ ${NODES:-1} != 1 ]]; then : "${GPUS_PER_NODE:=$GPUS}"; fi
: "${NODES:=1}" "${GPUS_PER_NODE:=}"

# Rollout: 8 prompts x 8 samples. 1024 + 3072 tokens; a response that is cut before its final answer is wrong. --plan
# says which lengths fit
: "${ROLLOUT_BATCH_SIZE:=8}" "${N_SAMPLES_PER_PROMPT:=8}"
: "${PROMPT_MAX_LEN:=1024}" "${GENERATE_MAX_LEN:=3072}"
: "${TEMPERATURE:=1.0}" "${TOP_P:=1.0}"
# DYNAMIC_FILTERING=1 draws another prompt for each one whose samples teach nothing: their mean score is not strictly
# between the two numbers of DYNAMIC_FILTERING_RANGE. The score is correctness, or that of your own reward. A step draws
# at most DYNAMIC_FILTERING_BATCHES x ROLLOUT_BATCH_SIZE prompts; then the groups nearest to the range fill it
: "${DYNAMIC_FILTERING:=0}" "${DYNAMIC_FILTERING_RANGE:=0 1}" "${DYNAMIC_FILTERING_BATCHES:=4}"
# A problem with RETIRE_AFTER groups in a row in which every sample had the score 1 rests for RETIRE_FOR global steps
# (empty: never). Then it comes back; one more such group, and it rests again
: "${RETIRE_AFTER:=}" "${RETIRE_FOR:=50}"
# Degenerate rollouts are left out of the update and of their group's mean, and counted (empty: none). DROP_REPETITION:
# more than this share of the 3-grams in some 512 tokens occurred earlier in them, such as 0.8. DROP_GIBBERISH: some 64
# tokens have a higher mean surprise to the engine, in nat per token, such as 5
: "${DROP_REPETITION:=}" "${DROP_GIBBERISH:=}"
# Reasoning effort for the chat template: low, medium or high (empty: the template's default, medium), and its other
# variables as JSON: {"model_identity": "You are a mathematician."}. gpt-oss's says which day it is: TEMPLATE_DATE, such
# as 2030-01-02 (empty: the day on which the run starts, also after a resume)
: "${REASONING_EFFORT:=}" "${TEMPLATE_VARIABLES:=}" "${TEMPLATE_DATE:=}"
# After THINKING_BUDGET tokens the thinking is cut, and the answer gets ANSWER_BUDGET tokens. Both and the delimiter
# must fit into GENERATE_MAX_LEN (empty: GENERATE_MAX_LEN limits the two together). THINKING_DELIMITER ends the
# thinking: harmony (gpt-oss), think (</think>), or a text with one of them in it. With ENVIRONMENT the budgets are those
# of each turn
: "${THINKING_BUDGET:=}" "${ANSWER_BUDGET:=}" "${THINKING_DELIMITER:=harmony}"

# Reward: CORRECTNESS_WEIGHT x correctness + QUALITY_WEIGHT x quality. A judge scores the quality; the weights must add
# up to 1. With JUDGE=0, no model, or QUALITY_WEIGHT=0 and CORRECTNESS_WEIGHT=1, the reward is correctness alone, and no
# model is called. If every model fails on a sample, JUDGE_FALLBACK decides its reward:
#   correctness    correctness alone, which favours correct samples
#   mean_quality   the running mean quality of correct or of wrong samples replaces its own
#   group          correctness alone for all samples of its prompt
# JUDGE_UNFINISHED=1 also judges responses without a final answer: they earn at most QUALITY_WEIGHT, and each costs a
# call. With 0 their quality is 0. Evaluations are never judged
: "${JUDGE:=1}" "${CORRECTNESS_WEIGHT:=0.6}" "${QUALITY_WEIGHT:=0.4}" "${JUDGE_FALLBACK:=correctness}"
: "${JUDGE_UNFINISHED:=1}"
# Gemini models in the order in which they are tried, separated by blanks or commas; checked before a run. 3 Pro was
# shut down in March 2026
: "${JUDGE_MODELS=gemini-3.1-pro-preview gemini-4-argon gemini-3.8-flash}"
# Calls to each model per sample, if the deadline leaves time (see --plan); seconds per sample, over all models and with
# all waiting; seconds per call
: "${JUDGE_TRIES:=3}" "${JUDGE_DEADLINE:=240}" "${JUDGE_CALL_TIMEOUT:=90}"
# Your quota for each model: requests (RPM) and prompt tokens (TPM) per minute, and concurrent calls, over all engines.
# The local server of --tiny has no quota and ignores RPM and TPM
: "${JUDGE_RPM:=120}" "${JUDGE_TPM:=1000000}" "${JUDGE_CONCURRENCY:=32}"
# Prices for --plan, in USD: of a million prompt tokens and of a million tokens of replies, such as "2 12"
: "${JUDGE_PRICE:=}"
# Where key and prompts are sent. Variables of google-genai have no effect, and redirects are not followed.
# JUDGE_PROXY=1 uses the proxy in HTTPS_PROXY or ALL_PROXY; 0 uses no proxy
: "${JUDGE_BASE_URL:=https://generativelanguage.googleapis.com}" "${JUDGE_PROXY:=0}"

# Length. LENGTH_SCHEDULE raises the limit up to GENERATE_MAX_LEN: at global steps, "1024,2048@50,3072@100", or once
# this share of samples was truncated in the last 5 steps, "1024,3072@20%". Evaluations always have GENERATE_MAX_LEN.
# The reward falls by up to OVERLONG_PENALTY over the last OVERLONG_BUFFER tokens before the limit (empty: no penalty).
# DAPO subtracts up to 1 from rewards of -1 and 1, Magistral 0.1. With ENVIRONMENT, the tokens of all turns count
: "${LENGTH_SCHEDULE:=}" "${OVERLONG_BUFFER:=}" "${OVERLONG_PENALTY:=0.5}"

# Several turns: an environment with tools instead of single answers. ENVIRONMENT is "python" (a Python interpreter
# without network and disk), "retrieval" (search and read LIBRARY, a folder of .txt and .md files or a .jsonl file with
# title and text), a .py file with a class Environment, verifiers:NAME for an environment of that package, or empty for
# single answers. The environment gives the reward; REWARD and the judge are not used. Several, separated by blanks,
# share the problems; "single" among them is single answers. A line of the data names its environment, or
# ENVIRONMENT_WEIGHTS shares the lines out (empty: equally)
: "${ENVIRONMENT:=}" "${ENVIRONMENT_WEIGHTS:=}" "${LIBRARY:=}"
# Limits of a rollout: turns per rollout, seconds per rollout, per tool call and per score, and additional samples of a
# rollout whose history was rewritten (for example because thinking was removed). The actor holds all samples of a
# rollout in memory at once. TEMPLATE: gpt-oss reads tool results as vLLM and openai-harmony serve them (served), or as
# JSON strings, as its chat template on the hub writes them (hub)
: "${TURN_LIMIT:=8}" "${ROLLOUT_SECONDS:=300}" "${TOOL_SECONDS:=20}" "${SCORE_SECONDS:=60}"
: "${MAX_BRANCHES:=3}" "${TEMPLATE:=served}"

# GRPO. KL_COEF above 0 subtracts the KL divergence from the model without its adapter from the reward: one more forward
# pass, no memory ("-- --use_kl_loss --kl_estimator k3" moves it into the loss).
# PIPELINE=1: while the actor trains on a batch, the engines sample the next one, so a step takes the longer of the two.
# The policy that samples is then one global step behind; the ratio compares with it (OLD_LOG_PROBS=engine). See
# docs/pipeline.md
# PARTIAL_ROLLOUTS with PIPELINE=1: so many prompts may have unfinished rollouts at the sync, so that the longest do not
# hold up the step. The next policy continues them, PARTIAL_POLICIES policies at most (0: a step waits for all its own).
# See docs/unfinished-rollouts.md
# LOSS_AGGREGATION is the weight of a token, with advantage A, length L of its sample, and S samples in the batch:
#   sequence_mean   A / (L S): tokens of long samples weigh less, which favours long wrong samples
#   token_mean      A / (tokens of the batch)
#   constant        A / (S GENERATE_MAX_LEN), as in Dr. GRPO
# TRAIN_BATCH_SIZE counts samples, not prompts: 64 samples in batches of 8 are 8 optimizer steps per rollout, and all
# but the first are off-policy. Micro-batches are the samples that a GPU computes at once, in the update and in passes
# for log-probs; they do not change the objective (empty: as many as fit, see --plan)
: "${ADVANTAGE_ESTIMATOR:=dr_grpo}" "${KL_COEF:=0}" "${EPS_CLIP:=0.2}"
: "${PIPELINE:=0}" "${PARTIAL_ROLLOUTS:=0}" "${PARTIAL_POLICIES:=2}"
if [[ $PIPELINE == 1 ]]; then : "${OLD_LOG_PROBS:=engine}"; fi
: "${LOSS_AGGREGATION:=token_mean}" "${OLD_LOG_PROBS:=trainer}" # or engine: uses the engine's log-probs in the ratio
# ROUTING_REPLAY=1: near a tie, rounding decides which experts a token gets. The actor then takes the engine's choice
: "${ROUTING_REPLAY:=0}"
# The run stops if engines and actor differ on the first rollouts by more than this, in nat on average, or in a way that
# rounding does not explain (0: no check)
: "${PARITY_LIMIT:=0.05}"
: "${TRAIN_BATCH_SIZE:=8}" "${MICRO_TRAIN_BATCH_SIZE:=}" "${MICRO_ROLLOUT_BATCH_SIZE:=}"
: "${NUM_EPISODES:=50}" "${STEPS:=}" # empty: all episodes

# Optimizer. The warm-up is a share of the optimizer steps of all episodes; STEPS ends a run and leaves its schedule as
# it is. A run has more optimizer steps than global steps. --plan prints the learning rate of the first steps
: "${LEARNING_RATE:=1e-6}" "${LR_WARMUP_RATIO:=0.03}" "${LR_SCHEDULER:=cosine_with_min_lr}"
: "${MAX_GRAD_NORM:=1.0}"

# LoRA on the attention only: the experts stay frozen, so the engines keep their MXFP4 kernels
: "${LORA_RANK:=64}" "${LORA_ALPHA:=128}" "${TARGET_MODULES:=q_proj k_proj v_proj o_proj}"

# Engines. Eager: the adapter is a side path in the layers. It is tested with torch.compile on CPU, not in CUDA graphs.
# GPU_MEMORY_UTILIZATION is an engine's share of a GPU (empty: what the actor leaves, with COLOCATE=1)
: "${ENFORCE_EAGER:=1}"
if [[ $COLOCATE != 1 ]]; then : "${GPU_MEMORY_UTILIZATION:=0.90}"; fi
GPU_MEMORY_UTILIZATION="${GPU_MEMORY_UTILIZATION-}"

# Actor. Experts stay packed in MXFP4 as in the files: 65 GB, 16 GB on each of 4 GPUs. EXPERTS=bf16 takes 234 GB, too
# much for 4 x 80 GB with activations, so the model is then kept in host memory. Attention: sinks (ours, in memory linear
# in the length) or eager (transformers'). flash_attention_2 drops gpt-oss's attention sinks silently.
# ACTOR_SHARD: zero3 gives each GPU a part of the frozen model, and gathers a layer when it is used. none keeps the whole
# model on each GPU, so that only gradients of the adapter travel
: "${EXPERTS:=packed}"
: "${ATTN_IMPLEMENTATION:=sinks}" "${ACTOR_SHARD:=zero3}"
if [[ $EXPERTS == bf16 && $ACTOR_SHARD == zero3 ]]; then : "${OFFLOAD:=1}"; else : "${OFFLOAD:=0}"; fi
: "${ADAM_OFFLOAD:=1}" "${GRADIENT_CHECKPOINTING:=1}"
: "${PERSISTENCE_THRESHOLD:=}" # elements; smaller parameters stay whole on every rank (empty: DeepSpeed's default)

# Evaluation on held-out problems, also before the first step: pass@1, and pass@8 from 8 samples of each, and a greedy
# answer. EVAL_TEMPERATURE=0 makes the samples greedy, and all equal, so there is 1
: "${EVAL_STEPS:=10}" "${EVAL_AT_START:=1}" "${EVAL_TEMPERATURE:=1.0}"
if [[ $EVAL_TEMPERATURE =~ ^0(\.0*)?$ ]]; then : "${EVAL_N_SAMPLES_PER_PROMPT:=1}"; fi
: "${EVAL_N_SAMPLES_PER_PROMPT:=8}"

# Checkpoints contain the adapter and its optimizer. The newest are kept, and always the best by held-out exact match
# and the last one before a fall of correctness. CKPT_DIR and METRICS_DIR may be on other disks
: "${SAVE_STEPS:=10}" "${MAX_CHECKPOINTS:=2}" "${CKPT_DIR:=}" "${METRICS_DIR:=}"

# Metrics go to metrics.jsonl and to TensorBoard files in the run directory, and to W&B and Trackio if these are on (see
# docs/trackers.md; WANDB_PROJECT and WANDB_NAME name the page). LOG_SAMPLES is how many samples of a step are written
# besides its extremes (empty: all)
: "${USE_TENSORBOARD:=1}" "${USE_WANDB:=0}" "${USE_TRACKIO:=0}" "${LOG_SAMPLES:=}"

: "${SEED:=42}"

# Faults. After a crash the run continues from its newest checkpoint, at most RESTARTS times without a new one in between
# (0: never). The same error after the same step twice ends it, and so does one before the first step or evaluation
: "${RESTARTS:=3}"
# A run hangs if a phase (generate, train, sync, ...) lasts HANG_MINUTES and 5 times as long as usual; 4 x HANG_MINUTES if
# the run has not completed this phase before (0: never). Its stacks go to logs/, and it is ended or restarted
: "${HANG_MINUTES:=30}"
# On SIGTERM (a spot machine's notice) or Ctrl-C the run saves its last completed step, and ends after at most
# SIGTERM_SECONDS and 10 seconds more; a second one ends it at once (0: so does the first). A step in training is
# completed first, if it takes no longer
: "${SIGTERM_SECONDS:=90}"
# Rules that save and end the run with exit code 3, off by default (empty, or 0): held-out exact match STOP_FALL below its
# best, such as 0.1; STOP_NON_FINITE=1, a loss that is not finite (not saved); STOP_DISK_GB left on a disk;
# STOP_JUDGE_FAILED, such as 0.5: the judge fails on a larger share of the samples of 3 steps in a row
: "${STOP_FALL:=}" "${STOP_NON_FINITE:=0}" "${STOP_DISK_GB:=}" "${STOP_JUDGE_FAILED:=}"

for SWITCH in COLOCATE ENFORCE_EAGER OFFLOAD ADAM_OFFLOAD GRADIENT_CHECKPOINTING EVAL_AT_START JUDGE JUDGE_UNFINISHED \
    JUDGE_PROXY DYNAMIC_FILTERING PIPELINE ROUTING_REPLAY STOP_NON_FINITE USE_TENSORBOARD USE_WANDB USE_TRACKIO; do
    [[ ${!SWITCH} == [01] ]] || refuse "$SWITCH is '${!SWITCH}': set it to 1 (on) or 0 (off)"
done

# One file of ours calls the files of your own
export GRPO_REWARD_FILES=""
REWARD_PROGRAM="$REWARD"
if [[ $REWARD != http://* && $REWARD != https://* && ! $REWARD -ef $HERE/reward/reward_func.py ]]; then
    read -ra FILES <<<"$REWARD"
    if [[ -f $REWARD ]]; then FILES=("$REWARD"); fi
    GRPO_REWARD_FILES="$(realpath -m -- "${FILES[@]}" | paste -sd :)"
    REWARD_PROGRAM="$HERE/reward/user_reward.py"
fi

# --- Flags ------------------------------------------------------------------------------------------------------------

read -ra TARGETS <<<"$TARGET_MODULES"
read -ra FILTER_RANGE <<<"$DYNAMIC_FILTERING_RANGE"

MODEL_ARGS=(
    --pretrain "$MODEL" --engine_model "$ENGINE_MODEL"
    --experts "$EXPERTS" --attn_implementation "$ATTN_IMPLEMENTATION" --actor_shard "$ACTOR_SHARD"
)
if [[ -n $GPU_GB ]]; then MODEL_ARGS+=(--gpu_gb "$GPU_GB"); fi

DATA_ARGS=(
    --prompt_data "$TRAIN_DATA" --eval_dataset "$EVAL_DATA"
    --input_key prompt --label_key label
    --remote_rm_url "$REWARD_PROGRAM"
)
if [[ -n $REASONING_EFFORT ]]; then DATA_ARGS+=(--reasoning_effort "$REASONING_EFFORT"); fi
if [[ -n $TEMPLATE_VARIABLES ]]; then DATA_ARGS+=(--template_variables "$TEMPLATE_VARIABLES"); fi
if [[ -n $TEMPLATE_DATE ]]; then DATA_ARGS+=(--template_date "$TEMPLATE_DATE"); fi
# An environment formats the chat itself
if [[ -n $ENVIRONMENT ]]; then
    DATA_ARGS+=(--agent_func_path "$HERE/grpo/rollout/multi_turn/agent.py")
else
    DATA_ARGS+=(--apply_chat_template)
fi

ROLLOUT_ARGS=(
    --rollout_batch_size "$ROLLOUT_BATCH_SIZE" --n_samples_per_prompt "$N_SAMPLES_PER_PROMPT"
    --prompt_max_len "$PROMPT_MAX_LEN" --generate_max_len "$GENERATE_MAX_LEN"
    --temperature "$TEMPERATURE" --top_p "$TOP_P"
)
if [[ $DYNAMIC_FILTERING == 1 ]]; then
    ROLLOUT_ARGS+=(--dynamic_filtering --dynamic_filtering_reward_range "${FILTER_RANGE[@]}")
    ROLLOUT_ARGS+=(--dynamic_filtering_batches "$DYNAMIC_FILTERING_BATCHES")
fi
if [[ -n $DROP_REPETITION ]]; then ROLLOUT_ARGS+=(--drop_repetition "$DROP_REPETITION"); fi
if [[ -n $DROP_GIBBERISH ]]; then ROLLOUT_ARGS+=(--drop_gibberish "$DROP_GIBBERISH"); fi
if [[ -n $RETIRE_AFTER ]]; then ROLLOUT_ARGS+=(--retire_after "$RETIRE_AFTER" --retire_for "$RETIRE_FOR"); fi
if [[ -n $MICRO_ROLLOUT_BATCH_SIZE ]]; then
    ROLLOUT_ARGS+=(--micro_rollout_batch_size "$MICRO_ROLLOUT_BATCH_SIZE")
fi
if [[ -n $LENGTH_SCHEDULE ]]; then ROLLOUT_ARGS+=(--length_schedule "$LENGTH_SCHEDULE"); fi
if [[ -n $OVERLONG_BUFFER ]]; then
    ROLLOUT_ARGS+=(--overlong_buffer_len "$OVERLONG_BUFFER" --overlong_penalty_factor "$OVERLONG_PENALTY")
fi
if [[ -n $THINKING_BUDGET ]]; then
    ROLLOUT_ARGS+=(--thinking_budget "$THINKING_BUDGET" --thinking_delimiter "$THINKING_DELIMITER")
fi
# Each turn, and the answer after a cut thought, is a separate call; the engine has its prefix in the cache
if [[ -n $THINKING_BUDGET || -n $ENVIRONMENT ]]; then ROLLOUT_ARGS+=(--enable_prefix_caching); fi
if [[ -n $ANSWER_BUDGET ]]; then ROLLOUT_ARGS+=(--answer_budget "$ANSWER_BUDGET"); fi

GRPO_ARGS=(
    --advantage_estimator "$ADVANTAGE_ESTIMATOR" --init_kl_coef "$KL_COEF" --eps_clip "$EPS_CLIP"
    --train_batch_size "$TRAIN_BATCH_SIZE"
    --num_episodes "$NUM_EPISODES" --seed "$SEED"
    --loss_aggregation "$LOSS_AGGREGATION" --old_log_probs "$OLD_LOG_PROBS" --parity_limit "$PARITY_LIMIT"
)
if [[ $PIPELINE == 1 ]]; then GRPO_ARGS+=(--pipeline); fi
if [[ $PARTIAL_ROLLOUTS != 0 ]]; then
    GRPO_ARGS+=(--partial_rollouts "$PARTIAL_ROLLOUTS" --partial_policies "$PARTIAL_POLICIES")
fi
if [[ $ROUTING_REPLAY == 1 ]]; then GRPO_ARGS+=(--routing_replay); fi
if [[ -n $MICRO_TRAIN_BATCH_SIZE ]]; then GRPO_ARGS+=(--micro_train_batch_size "$MICRO_TRAIN_BATCH_SIZE"); fi
if [[ -n $STEPS ]]; then GRPO_ARGS+=(--max_steps "$STEPS"); fi

OPTIM_ARGS=(
    --actor_learning_rate "$LEARNING_RATE" --lr_warmup_ratio "$LR_WARMUP_RATIO" --lr_scheduler "$LR_SCHEDULER"
    --max_norm "$MAX_GRAD_NORM"
)

LORA_ARGS=(--lora_rank "$LORA_RANK" --lora_alpha "$LORA_ALPHA" --target_modules "${TARGETS[@]}")

ENGINE_ARGS=(
    --vllm_num_engines "$NUM_ENGINES" --vllm_tensor_parallel_size "$ENGINE_TP"
)
if [[ $COLOCATE == 1 ]]; then ENGINE_ARGS+=(--colocate_all_models); fi
if [[ -n $GPU_MEMORY_UTILIZATION ]]; then
    ENGINE_ARGS+=(--vllm_gpu_memory_utilization "$GPU_MEMORY_UTILIZATION")
fi
if [[ $ENFORCE_EAGER == 1 ]]; then ENGINE_ARGS+=(--enforce_eager); fi

NODE_ARGS=(--nodes "$NODES")
if [[ -n $GPUS_PER_NODE ]]; then NODE_ARGS+=(--gpus_per_node "$GPUS_PER_NODE"); fi

ACTOR_ARGS=(--actor_num_nodes 1 --actor_num_gpus_per_node "$ACTOR_GPUS" --zero_stage 3)
# The actor without its adapter is the reference; OpenRLHF wants their sizes to be equal if GPUs are shared
ACTOR_ARGS+=(--ref_num_nodes 1 --ref_num_gpus_per_node "$ACTOR_GPUS")
if [[ $OFFLOAD == 1 ]]; then ACTOR_ARGS+=(--offload); fi
if [[ $ADAM_OFFLOAD == 1 ]]; then ACTOR_ARGS+=(--adam_offload); fi
if [[ -n $PERSISTENCE_THRESHOLD ]]; then
    ACTOR_ARGS+=(--stage3_param_persistence_threshold "$PERSISTENCE_THRESHOLD")
fi
# Non-reentrant checkpointing fails with LoRA under ZeRO-3
if [[ $GRADIENT_CHECKPOINTING == 1 ]]; then
    ACTOR_ARGS+=(--gradient_checkpointing --gradient_checkpointing_use_reentrant)
fi

EVAL_ARGS=(
    --eval_steps "$EVAL_STEPS" --eval_temperature "$EVAL_TEMPERATURE"
    --eval_n_samples_per_prompt "$EVAL_N_SAMPLES_PER_PROMPT"
)
if [[ $EVAL_AT_START == 1 ]]; then EVAL_ARGS+=(--eval_at_start); fi

CKPT_ARGS=(--save_steps "$SAVE_STEPS" --max_ckpt_num "$MAX_CHECKPOINTS")
if [[ -n $CKPT_DIR ]]; then CKPT_ARGS+=(--ckpt_path "$CKPT_DIR"); fi

LOG_ARGS=(--logging_steps 1)
if [[ -n $METRICS_DIR ]]; then LOG_ARGS+=(--metrics_dir "$METRICS_DIR"); fi
# 1 means "on": W&B's key comes from the environment, TensorBoard's folder from the run directory
if [[ $USE_WANDB == 1 ]]; then LOG_ARGS+=(--use_wandb 1); fi
if [[ $USE_TENSORBOARD == 1 ]]; then LOG_ARGS+=(--use_tensorboard 1); fi
if [[ $USE_TRACKIO == 1 ]]; then LOG_ARGS+=(--use_trackio); fi
if [[ -n $LOG_SAMPLES ]]; then LOG_ARGS+=(--log_samples "$LOG_SAMPLES"); fi

FAULT_ARGS=(--restarts "$RESTARTS" --hang_minutes "$HANG_MINUTES" --sigterm_seconds "$SIGTERM_SECONDS")
if [[ -n $STOP_FALL ]]; then FAULT_ARGS+=(--stop_fall "$STOP_FALL"); fi
if [[ $STOP_NON_FINITE == 1 ]]; then FAULT_ARGS+=(--stop_non_finite); fi
if [[ -n $STOP_DISK_GB ]]; then FAULT_ARGS+=(--stop_disk_gb "$STOP_DISK_GB"); fi
if [[ -n $STOP_JUDGE_FAILED ]]; then FAULT_ARGS+=(--stop_judge_failed "$STOP_JUDGE_FAILED"); fi

# Make paths absolute
read -ra ENVIRONMENTS <<<"$ENVIRONMENT"
if [[ -f $ENVIRONMENT ]]; then ENVIRONMENTS=("$ENVIRONMENT"); fi
for I in "${!ENVIRONMENTS[@]}"; do
    if [[ -f ${ENVIRONMENTS[I]} ]]; then ENVIRONMENTS[I]="$(realpath "${ENVIRONMENTS[I]}")"; fi
done
ENVIRONMENT="${ENVIRONMENTS[*]}"
if [[ -e $LIBRARY ]]; then LIBRARY="$(realpath "$LIBRARY")"; fi

# The engines call reward, judge and environment, so their settings are variables that reach every worker
for VARIABLE in JUDGE JUDGE_MODELS CORRECTNESS_WEIGHT QUALITY_WEIGHT JUDGE_FALLBACK JUDGE_UNFINISHED JUDGE_TRIES \
    REWARD_WEIGHTS ENVIRONMENT ENVIRONMENT_WEIGHTS LIBRARY TURN_LIMIT ROLLOUT_SECONDS TOOL_SECONDS SCORE_SECONDS \
    MAX_BRANCHES TEMPLATE \
    JUDGE_DEADLINE JUDGE_CALL_TIMEOUT JUDGE_RPM JUDGE_TPM JUDGE_CONCURRENCY JUDGE_PRICE \
    JUDGE_BASE_URL JUDGE_PROXY; do
    export "GRPO_$VARIABLE=${!VARIABLE}"
done

# --- Run --------------------------------------------------------------------------------------------------------------

# -P: do not import a folder named grpo from the current directory
LAUNCH=(python -P -m grpo.launch)

# Set-up would exchange the packages of this checkout, perhaps under a run that uses them
check_openrlhf() {
    local found
    found="$(compgen -G "$HERE/.venv/lib/python3.*/site-packages/openrlhf-*.dist-info")" || return 0
    found="${found##*/openrlhf-}"
    found="${found%.dist-info}"
    if [[ -n ${OPENRLHF_VERSION:-} && $OPENRLHF_VERSION != "$found" ]]; then
        refuse "OPENRLHF_VERSION is $OPENRLHF_VERSION, but .venv has OpenRLHF $found: unset it, or run \
OPENRLHF_VERSION=$OPENRLHF_VERSION ./scripts/setup.sh"
    fi
}

set_up() {
    check_openrlhf
    if [[ $MODE == run || ! -d $HERE/.venv ]]; then "$HERE/scripts/setup.sh" --quiet; fi
    # shellcheck source=scripts/env.sh
    source "$HERE/scripts/env.sh"
}

set_up
# The tiny model and its problems are made once, and again after their code has changed
if ((TINY)) && [[ $MODE == run || $MODE == check ]]; then
    python -P -m scripts.make_tiny_model --out "$TINY_DIR/mxfp4" --dequantized-out "$TINY_DIR/bf16"
    python -P -m data.prepare --source synthetic --train-count 1024 --eval-count 256 --out "$TINY_DIR" >/dev/null
    if [[ -n $TINY_TOOLS ]]; then
        python -P -m scripts.make_tiny_tools --environment "$ENVIRONMENT" --base "$TINY_DIR/bf16" --out "$TINY_TOOLS"
    fi
fi

OPTIONS=(--name "$NAME" --options="${AGAIN[*]}")
if ((TINY)); then OPTIONS+=(--stand-in); fi
if [[ -n $RUN_DIR ]]; then OPTIONS+=(--run-dir "$RUN_DIR"); fi
if [[ -n $RESUME ]]; then OPTIONS+=(--resume "$RESUME"); fi
if [[ -n $FROM_STEP ]]; then OPTIONS+=(--from-step "$FROM_STEP"); fi

exec "${LAUNCH[@]}" "$MODE" "${OPTIONS[@]}" -- \
    "${MODEL_ARGS[@]}" "${DATA_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIM_ARGS[@]}" "${LORA_ARGS[@]}" \
    "${ENGINE_ARGS[@]}" "${NODE_ARGS[@]}" "${ACTOR_ARGS[@]}" "${EVAL_ARGS[@]}" "${CKPT_ARGS[@]}" "${LOG_ARGS[@]}" \
    "${FAULT_ARGS[@]}" -- \
    "${EXTRA_ARGS[@]}"

}
