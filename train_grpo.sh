#!/usr/bin/env bash
# GRPO for gpt-oss-120b with LoRA, on one node of 8 GPUs; or the same run in small, without a GPU.
#
#   ./train_grpo.sh --tiny                     tiny gpt-oss, synthetic problems: 3 to 8 minutes on 2 cores, 12 GB
#   TRAIN_DATA=... EVAL_DATA=... ./train_grpo.sh                gpt-oss-120b: 8 x 80 GB GPUs, 300 GB host memory
#   LEARNING_RATE=2e-6 ./train_grpo.sh --steps 20               every variable below can be set from outside
#   ./train_grpo.sh -- --eps_clip_low_high 0.2 0.28             any other OpenRLHF flag; the last one wins
#
# Options:
#   --tiny          the small run
#   --check         only check machine, patches, model, data and configuration (after the set-up, and making the
#                   tiny model, where these are still missing)
#   --plan          only print what the configuration means: batches, lengths, steps, memory, disk
#   --dry-run       only print the resolved command; writes nothing
#   --run-dir DIR   where everything of this run goes (default: runs/NAME-TIME in the checkout)
#   --resume DIR    continue the run in DIR from its newest checkpoint, with the settings given now; "latest": the
#                   newest run of this NAME
#   --from-step N   with --resume: continue from step N in place of the newest; newer checkpoints are set aside in
#                   checkpoints/set-aside-TIME
#   --steps N       stop after N global steps
#   --help          this text
#
# Joins the Ray cluster at RAY_ADDRESS where that is set; starts one of its own otherwise.
# Secrets are taken from the environment and written nowhere: GEMINI_API_KEY (or GOOGLE_API_KEY, which is taken where
# both are set) for the judge, and WANDB_API_KEY. Without a key for the judge, --tiny starts a local server in its
# place, and says so.
# Exit code: 0 done, 2 refused before anything was started, 130 Ctrl-C, otherwise that of the driver.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
TINY_DIR="$HERE/.cache/tiny-model"
TINY=0 MODE=run RUN_DIR="" RESUME="" FROM_STEP="" EXTRA_ARGS=()

refuse() {
    printf 'train_grpo.sh: %s\n' "$1" >&2
    exit 2
}

while (($#)); do
    case "$1" in
        --tiny) TINY=1 ;;
        --check | --plan | --dry-run)
            [[ $MODE == run ]] || refuse "--$MODE and $1 exclude each other"
            MODE="${1#--}"
            ;;
        --run-dir | --resume | --from-step | --steps)
            (($# > 1)) || refuse "$1 needs a value; see ./train_grpo.sh --help"
            case "$1" in
                --run-dir) RUN_DIR="$2" ;;
                --resume) RESUME="$2" ;;
                --from-step) FROM_STEP="$2" ;;
                --steps) STEPS="$2" ;;
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
        *) refuse "unknown option $1; OpenRLHF flags go after --, options are in ./train_grpo.sh --help" ;;
    esac
    shift
done

# --- The small run: other values for what follows, nothing else -------------------------------------------------------

if ((TINY)); then
    : "${NAME:=tiny}"
    : "${MODEL:=$TINY_DIR/mxfp4}"
    : "${ENGINE_MODEL:=$TINY_DIR/bf16}" # vLLM has no MXFP4 on CPU
    : "${TRAIN_DATA:=$TINY_DIR/train.jsonl}" "${EVAL_DATA:=$TINY_DIR/eval.jsonl}"
    : "${NUM_ENGINES:=2}" "${ENGINE_TP:=1}" "${ACTOR_GPUS:=2}"
    : "${ROLLOUT_BATCH_SIZE:=16}" "${N_SAMPLES_PER_PROMPT:=8}" "${TRAIN_BATCH_SIZE:=64}"
    : "${MICRO_TRAIN_BATCH_SIZE:=16}" "${MICRO_ROLLOUT_BATCH_SIZE:=16}"
    : "${PROMPT_MAX_LEN:=128}" "${GENERATE_MAX_LEN:=48}"
    : "${EVAL_N_SAMPLES_PER_PROMPT:=1}"
    : "${LEARNING_RATE:=2e-3}" # a fresh adapter on a model of a few million parameters has far to go
    : "${LR_SCHEDULER:=constant_with_warmup}"
    : "${LORA_RANK:=8}" "${LORA_ALPHA:=16}"
    : "${PERSISTENCE_THRESHOLD:=0}" # everything is partitioned, as the parameters of the 120b are
    : "${NUM_EPISODES:=1}" "${STEPS:=10}" "${SAVE_STEPS:=5}"
fi

# --- Hyperparameters --------------------------------------------------------------------------------------------------

# Model and data
: "${MODEL:=openai/gpt-oss-120b}" # a folder, or a hub id that is already in the hub's cache
: "${ENGINE_MODEL:=$MODEL}"       # what the engines load
: "${TRAIN_DATA:=$HERE/data/prepared/train.jsonl}"
: "${EVAL_DATA:=$HERE/data/prepared/eval.jsonl}"
: "${REWARD:=$HERE/reward/reward_func.py}"
: "${NAME:=$(basename "$MODEL")}"

# Who gets which GPUs: 2 x 2 for the engines, 4 for the actor
: "${NUM_ENGINES:=2}" "${ENGINE_TP:=2}" "${ACTOR_GPUS:=4}"

# Rollout: 8 prompts x 8 samples. 1024 + 3072 tokens; a response that is cut before its final answer is not correct
: "${ROLLOUT_BATCH_SIZE:=8}" "${N_SAMPLES_PER_PROMPT:=8}" "${MICRO_ROLLOUT_BATCH_SIZE:=1}"
: "${PROMPT_MAX_LEN:=1024}" "${GENERATE_MAX_LEN:=3072}"
: "${TEMPERATURE:=1.0}" "${TOP_P:=1.0}"
# How long gpt-oss thinks, as its chat template says it: low, medium or high (empty: the template's default, medium)
: "${REASONING_EFFORT:=}"
# After THINKING_BUDGET tokens the thinking is ended by force, and an answer has ANSWER_BUDGET tokens (empty: one limit
# for both, GENERATE_MAX_LEN, which both and the delimiter have to fit in). What ends it: harmony (gpt-oss), think
# (</think>), or a text of your own. Not with ENVIRONMENT
: "${THINKING_BUDGET:=}" "${ANSWER_BUDGET:=}" "${THINKING_DELIMITER:=harmony}"

# Reward: CORRECTNESS_WEIGHT x correctness + QUALITY_WEIGHT x quality, which a judge scores; the weights add up to 1.
# JUDGE=0, no model, or QUALITY_WEIGHT=0 is correctness alone, and no model is asked. If every model fails for a
# sample, JUDGE_FALLBACK says what it gets:
#   correctness    correctness alone: pays a correct sample for the failure
#   mean_quality   the running mean of quality, of correct or of wrong samples, in place of its own
#   group          correctness alone for all samples of its prompt
# JUDGE_UNFINISHED=1 judges the reasoning of a response without a final answer as well: it earns QUALITY_WEIGHT at most,
# and each costs a call. With 0 its quality is 0. Evaluations are never judged
: "${JUDGE:=1}" "${CORRECTNESS_WEIGHT:=0.6}" "${QUALITY_WEIGHT:=0.4}" "${JUDGE_FALLBACK:=correctness}"
: "${JUDGE_UNFINISHED:=1}"
# Gemini models in the order in which they are tried, with blanks or commas between them; checked before a run. 3 Pro
# was shut down in March 2026
: "${JUDGE_MODELS=gemini-3.1-pro-preview gemini-4-argon gemini-3.8-flash}"
# Calls to each model for a sample, as far as the deadline leaves time (see --plan); seconds for a sample, over all
# models with all waiting; seconds for one call
: "${JUDGE_TRIES:=3}" "${JUDGE_DEADLINE:=240}" "${JUDGE_CALL_TIMEOUT:=90}"
# Your quota for each model: requests (RPM) and prompt tokens (TPM) a minute, and calls at once, over all engines. The
# local server that answers --tiny without a key has no quota: it goes by neither RPM nor TPM
: "${JUDGE_RPM:=120}" "${JUDGE_TPM:=1000000}" "${JUDGE_CONCURRENCY:=32}"
# Where key and prompts go: no variable of google-genai's moves them, and no redirect is followed. JUDGE_PROXY=1 sends
# them through the proxy that HTTPS_PROXY or ALL_PROXY names; 0 uses no proxy
: "${JUDGE_BASE_URL:=https://generativelanguage.googleapis.com}" "${JUDGE_PROXY:=0}"

# Length. LENGTH_SCHEDULE lets the limit grow up to GENERATE_MAX_LEN, which evaluations always have: by global steps,
# "1024,2048@50,3072@100", or when so many samples were truncated in the last 5 steps, "1024,3072@20%". The reward falls
# by up to OVERLONG_PENALTY over the last OVERLONG_BUFFER tokens before the limit (empty: no penalty). DAPO takes 1 off
# rewards of -1 and 1, Magistral 0.1
: "${LENGTH_SCHEDULE:=}" "${OVERLONG_BUFFER:=}" "${OVERLONG_PENALTY:=0.5}"

# Several turns: an environment with tools in place of single answers. "retrieval" (search and read in LIBRARY, a folder
# of .txt and .md files or a .jsonl with title and text), or a .py file with a class Environment; empty: single answers.
# The environment gives the reward: REWARD and the judge are not asked. Limits: turns of a rollout, seconds of a rollout
# and of one tool call; and how many samples beside its last one a rollout may have where its history was rewritten
# (thinking left out, for instance): they are in the actor's memory at once
: "${ENVIRONMENT:=}" "${LIBRARY:=}" "${TURN_LIMIT:=8}" "${ROLLOUT_SECONDS:=300}" "${TOOL_SECONDS:=20}"
: "${MAX_BRANCHES:=3}"

# GRPO. A KL_COEF above 0 takes a KL to the model without its adapter off the reward: one more forward pass, no memory
# (in the loss with "-- --use_kl_loss --kl_estimator k3").
# What a token counts (LOSS_AGGREGATION), A being a sample's advantage and L its length, for the S samples of a batch:
#   sequence_mean   A / (L S): cheap tokens in long samples, which favours long wrong ones
#   token_mean      A / (tokens of the batch)
#   constant        A / (S GENERATE_MAX_LEN), Dr. GRPO's
# TRAIN_BATCH_SIZE counts samples, not prompts: 64 samples in batches of 8 are 8 optimizer steps a rollout, and all but
# the first of them are off-policy
: "${ADVANTAGE_ESTIMATOR:=dr_grpo}" "${KL_COEF:=0}" "${EPS_CLIP:=0.2}"
: "${LOSS_AGGREGATION:=token_mean}" "${OLD_LOG_PROBS:=trainer}" # or engine: the ratio goes to what the engine said
: "${TRAIN_BATCH_SIZE:=8}" "${MICRO_TRAIN_BATCH_SIZE:=1}"
: "${NUM_EPISODES:=50}" "${STEPS:=}" # empty: until the episodes are through

# Optimizer. The warm-up is a share of the optimizer steps, which are more than the global steps (see --plan)
: "${LEARNING_RATE:=1e-6}" "${LR_WARMUP_RATIO:=0.03}" "${LR_SCHEDULER:=cosine_with_min_lr}"
: "${MAX_GRAD_NORM:=1.0}"

# LoRA on the attention: the experts stay frozen, and with them the MXFP4 kernels of the engines
: "${LORA_RANK:=64}" "${LORA_ALPHA:=128}" "${TARGET_MODULES:=q_proj k_proj v_proj o_proj}"

# Engines. Eager: the adapter is a side path in the layers, tested with torch.compile on CPU, but in no CUDA graph
: "${ENFORCE_EAGER:=1}" "${GPU_MEMORY_UTILIZATION:=0.90}"

# Actor. In bf16 the model has 234 GB: more than 4 x 80 GB leave beside the activations, so it lives in host memory.
# Eager attention applies gpt-oss's sinks; flash_attention_2 drops them without a word
: "${OFFLOAD:=1}" "${ADAM_OFFLOAD:=1}" "${GRADIENT_CHECKPOINTING:=1}"
: "${ATTN_IMPLEMENTATION:=eager}"
: "${PERSISTENCE_THRESHOLD:=}" # elements; smaller parameters stay whole on every rank (empty: DeepSpeed's default)

# Eval on held-out problems, also before the first step
: "${EVAL_STEPS:=10}" "${EVAL_AT_START:=1}" "${EVAL_TEMPERATURE:=1.0}" "${EVAL_N_SAMPLES_PER_PROMPT:=4}"

# Checkpoints hold the adapter and its optimizer. The newest are kept, always the best by held-out exact match, and the
# last one from before a fall of correctness; other disks can be named
: "${SAVE_STEPS:=10}" "${MAX_CHECKPOINTS:=2}" "${CKPT_DIR:=}" "${METRICS_DIR:=}"

# Numbers go to metrics.jsonl, and to TensorBoard files in the run directory; to W&B (WANDB_API_KEY) and Trackio where
# these are installed and switched on. LOG_SAMPLES of a step are written beside its extremes (empty: all)
: "${USE_TENSORBOARD:=1}" "${USE_WANDB:=0}" "${USE_TRACKIO:=0}" "${LOG_SAMPLES:=}"

: "${SEED:=42}"

for SWITCH in ENFORCE_EAGER OFFLOAD ADAM_OFFLOAD GRADIENT_CHECKPOINTING EVAL_AT_START JUDGE JUDGE_UNFINISHED \
    JUDGE_PROXY USE_TENSORBOARD USE_WANDB USE_TRACKIO; do
    [[ ${!SWITCH} == [01] ]] || refuse "$SWITCH is '${!SWITCH}': 1 switches it on, 0 off"
done

# --- Flags ------------------------------------------------------------------------------------------------------------

read -ra TARGETS <<<"$TARGET_MODULES"

MODEL_ARGS=(--pretrain "$MODEL" --engine_model "$ENGINE_MODEL" --attn_implementation "$ATTN_IMPLEMENTATION")

DATA_ARGS=(
    --prompt_data "$TRAIN_DATA" --eval_dataset "$EVAL_DATA"
    --input_key prompt --label_key label
    --remote_rm_url "$REWARD"
)
if [[ -n $REASONING_EFFORT ]]; then DATA_ARGS+=(--reasoning_effort "$REASONING_EFFORT"); fi
# An environment makes the messages itself, and gets the problem as it is
if [[ -n $ENVIRONMENT ]]; then
    DATA_ARGS+=(--agent_func_path "$HERE/grpo/rollout/multi_turn/agent.py")
else
    DATA_ARGS+=(--apply_chat_template)
fi

ROLLOUT_ARGS=(
    --rollout_batch_size "$ROLLOUT_BATCH_SIZE" --n_samples_per_prompt "$N_SAMPLES_PER_PROMPT"
    --micro_rollout_batch_size "$MICRO_ROLLOUT_BATCH_SIZE"
    --prompt_max_len "$PROMPT_MAX_LEN" --generate_max_len "$GENERATE_MAX_LEN"
    --temperature "$TEMPERATURE" --top_p "$TOP_P"
)
if [[ -n $LENGTH_SCHEDULE ]]; then ROLLOUT_ARGS+=(--length_schedule "$LENGTH_SCHEDULE"); fi
if [[ -n $OVERLONG_BUFFER ]]; then
    ROLLOUT_ARGS+=(--overlong_buffer_len "$OVERLONG_BUFFER" --overlong_penalty_factor "$OVERLONG_PENALTY")
fi
if [[ -n $THINKING_BUDGET ]]; then
    ROLLOUT_ARGS+=(--thinking_budget "$THINKING_BUDGET" --thinking_delimiter "$THINKING_DELIMITER")
fi
# A turn, and the answer to a thought that was cut, are calls of their own: the engine has what came before in its cache
if [[ -n $THINKING_BUDGET || -n $ENVIRONMENT ]]; then ROLLOUT_ARGS+=(--enable_prefix_caching); fi
if [[ -n $ANSWER_BUDGET ]]; then ROLLOUT_ARGS+=(--answer_budget "$ANSWER_BUDGET"); fi

GRPO_ARGS=(
    --advantage_estimator "$ADVANTAGE_ESTIMATOR" --init_kl_coef "$KL_COEF" --eps_clip "$EPS_CLIP"
    --train_batch_size "$TRAIN_BATCH_SIZE" --micro_train_batch_size "$MICRO_TRAIN_BATCH_SIZE"
    --num_episodes "$NUM_EPISODES" --seed "$SEED"
    --loss_aggregation "$LOSS_AGGREGATION" --old_log_probs "$OLD_LOG_PROBS"
)
if [[ -n $STEPS ]]; then GRPO_ARGS+=(--max_steps "$STEPS"); fi

OPTIM_ARGS=(
    --actor_learning_rate "$LEARNING_RATE" --lr_warmup_ratio "$LR_WARMUP_RATIO" --lr_scheduler "$LR_SCHEDULER"
    --max_norm "$MAX_GRAD_NORM"
)

LORA_ARGS=(--lora_rank "$LORA_RANK" --lora_alpha "$LORA_ALPHA" --target_modules "${TARGETS[@]}")

ENGINE_ARGS=(
    --vllm_num_engines "$NUM_ENGINES" --vllm_tensor_parallel_size "$ENGINE_TP"
    --vllm_gpu_memory_utilization "$GPU_MEMORY_UTILIZATION"
)
if [[ $ENFORCE_EAGER == 1 ]]; then ENGINE_ARGS+=(--enforce_eager); fi

ACTOR_ARGS=(--actor_num_nodes 1 --actor_num_gpus_per_node "$ACTOR_GPUS" --zero_stage 3)
if [[ $OFFLOAD == 1 ]]; then ACTOR_ARGS+=(--offload); fi
if [[ $ADAM_OFFLOAD == 1 ]]; then ACTOR_ARGS+=(--adam_offload); fi
if [[ -n $PERSISTENCE_THRESHOLD ]]; then
    ACTOR_ARGS+=(--stage3_param_persistence_threshold "$PERSISTENCE_THRESHOLD")
fi
# Reentrant: the other kind fails with LoRA under ZeRO-3
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
# The value stands for "on": W&B's key comes from the environment, TensorBoard's folder from the run directory
if [[ $USE_WANDB == 1 ]]; then LOG_ARGS+=(--use_wandb 1); fi
if [[ $USE_TENSORBOARD == 1 ]]; then LOG_ARGS+=(--use_tensorboard 1); fi
if [[ $USE_TRACKIO == 1 ]]; then LOG_ARGS+=(--use_trackio); fi
if [[ -n $LOG_SAMPLES ]]; then LOG_ARGS+=(--log_samples "$LOG_SAMPLES"); fi

# What is a path has to be one from everywhere
if [[ -f $ENVIRONMENT ]]; then ENVIRONMENT="$(realpath "$ENVIRONMENT")"; fi
if [[ -e $LIBRARY ]]; then LIBRARY="$(realpath "$LIBRARY")"; fi

# Judge and environment are asked in the engines: their settings are variables that reach every worker
for VARIABLE in JUDGE JUDGE_MODELS CORRECTNESS_WEIGHT QUALITY_WEIGHT JUDGE_FALLBACK JUDGE_UNFINISHED JUDGE_TRIES \
    ENVIRONMENT LIBRARY TURN_LIMIT ROLLOUT_SECONDS TOOL_SECONDS MAX_BRANCHES \
    JUDGE_DEADLINE JUDGE_CALL_TIMEOUT JUDGE_RPM JUDGE_TPM JUDGE_CONCURRENCY \
    JUDGE_BASE_URL JUDGE_PROXY; do
    export "GRPO_$VARIABLE=${!VARIABLE}"
done

# --- Run --------------------------------------------------------------------------------------------------------------

# -P: a folder named grpo where the user stands is not our package
LAUNCH=(python -P -m grpo.launch)

set_up() {
    if [[ $MODE == run || ! -d $HERE/.venv ]]; then "$HERE/scripts/setup.sh" --quiet "$@"; fi
    # shellcheck source=scripts/env.sh
    source "$HERE/scripts/env.sh"
}

# The tiny model and its problems; made once, and again after their code has changed. The model needs the packages alone:
# one core trains it while the others compile the rest of the set-up
if ((TINY)) && [[ $MODE == run || $MODE == check ]]; then
    set_up --packages
    mkdir -p "$TINY_DIR"
    "${LAUNCH[@]}" guard -- python -P -m scripts.make_tiny_model \
        --out "$TINY_DIR/mxfp4" --dequantized-out "$TINY_DIR/bf16" &
    BUILDER=$!
    set_up
    wait "$BUILDER"
    python -P -m data.prepare --source synthetic --train-count 1024 --eval-count 256 --out "$TINY_DIR" >/dev/null
else
    set_up
fi

OPTIONS=(--name "$NAME")
if ((TINY)); then OPTIONS+=(--stand-in); fi
if [[ -n $RUN_DIR ]]; then OPTIONS+=(--run-dir "$RUN_DIR"); fi
if [[ -n $RESUME ]]; then OPTIONS+=(--resume "$RESUME"); fi
if [[ -n $FROM_STEP ]]; then OPTIONS+=(--from-step "$FROM_STEP"); fi

exec "${LAUNCH[@]}" "$MODE" "${OPTIONS[@]}" -- \
    "${MODEL_ARGS[@]}" "${DATA_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIM_ARGS[@]}" "${LORA_ARGS[@]}" \
    "${ENGINE_ARGS[@]}" "${ACTOR_ARGS[@]}" "${EVAL_ARGS[@]}" "${CKPT_ARGS[@]}" "${LOG_ARGS[@]}" "${EXTRA_ARGS[@]}"
