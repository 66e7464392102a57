#!/usr/bin/env bash
# Trains gpt-oss-120b with GRPO and LoRA on one node of 8 x 80 GB GPUs with 30 GB of host memory: two vLLM engines with
# tensor parallelism 2 sample, and a DeepSpeed ZeRO-3 actor on four GPUs trains, all started by Ray.
# 100 steps of the README's command take 4.0 hours if every response reaches the limit (calculated, not measured).
# `./train_grpo.sh --plan` prints memory, hours, and cost of what stands here.
#
#   ./train_grpo.sh --tiny                            tiny gpt-oss without a GPU: 2 minutes on 2 cores, 5 GB
#   TRAIN_DATA=... EVAL_DATA=... ./train_grpo.sh      gpt-oss-120b on your problems
#   ./train_grpo.sh --actor_learning_rate 3e-5        any flag; the command line wins over this file
#   ./train_grpo.sh --no-judge                        --no-NAME turns a switch off
#   ./train_grpo.sh --gpus 2                          the same on 2 x 80 GB GPUs; also 4 and 1
#   MODEL=openai/gpt-oss-20b ./train_grpo.sh --gpus 2 gpt-oss-20b: two GPUs of 24 GB
#   ./train_grpo.sh --check | --plan | --dry-run      look before a run
#   ./train_grpo.sh --resume latest                   continue a run
#   ./train_grpo.sh --help                            all flags: OpenRLHF's, ours, and how to start a run
#
# For another experiment, edit a copy: cp train_grpo.sh my_task.sh. Lines that you edit win over --tiny and --gpus.
# With RAY_ADDRESS, the run joins that Ray cluster; otherwise it starts its own. Secrets are read from the environment
# and never written: GEMINI_API_KEY for the judge (or GOOGLE_API_KEY, which wins if both are set), and WANDB_API_KEY.
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"  # in a copy elsewhere: the path of the checkout

MODEL_ARGS=(
    --pretrain "${MODEL:-openai/gpt-oss-120b}"  # a folder, or a hub id that is already in the hub's cache
    --lora_rank 64
    --lora_alpha 128
    --target_modules q_proj k_proj v_proj o_proj  # docs/tuning.md has adapters for the experts
)

PLACEMENT_ARGS=(  # 2 x 2 GPUs for the engines, 4 for the actor
    --vllm_num_engines 2
    --vllm_tensor_parallel_size 2
    --actor_num_gpus_per_node 4
)

ROLLOUT_ARGS=(
    --prompt_data "${TRAIN_DATA:-}"  # .jsonl with prompt and label; empty: data/prepared/train.jsonl
    --environment "${ENVIRONMENT:-}"  # several turns with tools: python, retrieval, a .py file; empty: single answers
    --rollout_batch_size 8  # prompts of a global step
    --n_samples_per_prompt 8  # rollouts of a prompt: its group
    --prompt_max_len 1024
    --generate_max_len 3072  # a response that is cut before its final answer is wrong
    --temperature 1.0
)

REWARD_ARGS=(  # correctness_weight x correctness + quality_weight x quality
    --remote_rm_url "${REWARD:-}"  # your .py files with reward_func(queries, prompts, labels); empty: reward/reward_func.py
    --judge  # Gemini scores the quality; --no-judge: correctness alone, and no model is called
    --correctness_weight 0.6
    --quality_weight 0.4
    # Tried in this order, and checked before a run. 3 Pro was shut down in March 2026
    --judge_models "gemini-3.1-pro-preview gemini-4-argon gemini-3.8-flash"
    --judge_fallback correctness  # if all fail
)

GRPO_ARGS=(
    --advantage_estimator dr_grpo
    --loss_aggregation token_mean  # sequence_mean favors long wrong rollouts; constant is Dr. GRPO's
    --eps_clip 0.2
    # 0 saves a forward pass, and a graded answer needs no KL. Start with 0.001 if the reward can be gamed
    --init_kl_coef 0
    --train_batch_size 64  # rollouts of an optimizer step: all of a global step, so each step is on-policy
    --num_episodes 50  # passes over the problems; --steps N ends earlier
)

OPTIMIZER_ARGS=(  # docs/tuning.md says why these differ from 1e-6 and 8 optimizer steps on each batch
    --actor_learning_rate 1e-5
    --lr_warmup_ratio 0.03  # of the run's optimizer steps
    --lr_scheduler cosine_with_min_lr
)

EVAL_ARGS=(
    --eval_dataset "${EVAL_DATA:-}"  # held-out problems; empty: eval.jsonl beside the training problems
    --eval_steps 10  # also before the first step
    --save_steps 5  # adapter and optimizer: a second each; a crash loses the steps since the newest
    --max_ckpt_num 2  # the newest; the best is always kept
)

[[ -x $checkout/scripts/launch.sh ]] || { echo "refused: edit the line checkout= of $0: it names the checkout of gptoss-grpo" >&2; exit 2; }
exec "$checkout/scripts/launch.sh" --script "${BASH_SOURCE[0]}" "${MODEL_ARGS[@]}" "${PLACEMENT_ARGS[@]}" \
    "${ROLLOUT_ARGS[@]}" "${REWARD_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${EVAL_ARGS[@]}" -- "$@"
