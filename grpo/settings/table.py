"""All settings of a run, in the order of docs/settings.md. Those without a default stand in train_grpo.sh.

A new setting is an entry here and the code that uses it; the trainer gets it as `args.FLAG`. Then run
`python -P -m grpo.settings --page > docs/settings.md`.
"""

from grpo.settings.setting import POSITIVE_SHARE, SHARE, Check, Setting, above, at_least

COUNT = at_least(1)  # of something that the plan divides by, so it is checked first
POSITIVE = at_least(1)
NOT_NEGATIVE = at_least(0)
HIGHEST_RATE = 0.1  # Adam moves each weight of the adapter by about the rate: one step would replace all of them
_INTERVAL = Check("1 or more, or -1 for never", lambda value: value >= 1 or value == -1)
_RATE = Check(
    f"a number above 0 and below {HIGHEST_RATE:g}: 1e-6 to 1e-4 is usual, and 2e-3 for the tiny model",
    lambda value: 0 < value < HIGHEST_RATE,
)  # fmt: skip

MODEL = (
    Setting("MODEL", str, "The model to train: a folder, or the id of a model already in the Hugging Face cache.",
            flag="pretrain"),
    Setting("ADAPTER", str, "A LoRA adapter of MODEL to start from: a folder in PEFT's format, such as another run's "
            "`final/`. LORA_RANK, EXPERT_RANK, LORA_ALPHA, and TARGET_MODULES must match it. See [starting from "
            "an adapter](runs.md#starting-from-an-adapter). Empty: a new adapter, which initially has no effect.", "",
            "adapter", is_ours=True),
    Setting("ENGINE_MODEL", str, "The model that the engines load. Empty: MODEL.", "", "engine_model", is_ours=True),
    Setting("TRAIN_DATA", str, "Training problems; see [data](data.md). Empty: `data/prepared/train.jsonl`.",
            flag="prompt_data"),
    Setting("EVAL_DATA", str, "Held-out problems. Empty: `eval.jsonl` beside TRAIN_DATA, where `data.prepare` writes "
            "it.", flag="eval_dataset"),
    Setting("NAME", str, "First part of the run directory's name. Empty: the last part of MODEL.", ""),
    Setting("SEED", int, "Seed of all random choices.", "42", "seed",
            check=Check("a number from 0 to 4294967295", lambda value: 0 <= value < 2**32)),
)  # fmt: skip

CHAT = (
    Setting("REASONING_EFFORT", str, "`low`, `medium`, or `high`. Empty: the template's default, medium.", "",
            "reasoning_effort", is_ours=True, choices=("low", "medium", "high")),
    Setting("TEMPLATE_VARIABLES", str, 'More variables of the template, as JSON, such as `{"model_identity": "You are '
            'a mathematician."}`.', "", "template_variables", is_ours=True),
    Setting("TEMPLATE_DATE", str, "The date in gpt-oss's template, such as 2030-01-02. Empty: the day of the run's "
            "first start.", "", "template_date", is_ours=True),
)  # fmt: skip

GPUS = (
    Setting("NUM_ENGINES", int, "vLLM engines in the whole run.", flag="vllm_num_engines", check=COUNT),
    Setting("ENGINE_TP", int, "GPUs per engine (tensor parallelism). An engine never spans nodes.",
            flag="vllm_tensor_parallel_size", check=COUNT),
    Setting("ACTOR_GPUS", int, "GPUs of the actor in the whole run.", flag="actor_num_gpus_per_node", check=COUNT,
            also="ref_num_gpus_per_node"),
    Setting("COLOCATE", bool, "1: engines and actor take turns on the same GPUs. NUM_ENGINES x ENGINE_TP must then "
            "equal ACTOR_GPUS.", flag="colocate_all_models"),
    Setting("GPU_GB", float, "Memory per GPU in GB, for `--plan` on another machine. Empty: that of this machine's "
            "GPUs, or 80 if unknown.", "", "gpu_gb", is_ours=True, check=above(0)),
)  # fmt: skip

ROLLOUT = (
    Setting("ROLLOUT_BATCH_SIZE", int, "Prompts per global step.", flag="rollout_batch_size", check=COUNT),
    Setting("N_SAMPLES_PER_PROMPT", int, "Rollouts per prompt: the size of a group.", flag="n_samples_per_prompt",
            check=COUNT),
    Setting("PROMPT_MAX_LEN", int, "Longest prompt, in tokens.", flag="prompt_max_len", check=COUNT),
    Setting("GENERATE_MAX_LEN", int, "Longest response, in tokens. A response that is cut before its final answer is "
            "wrong. `--plan` shows which lengths fit.", flag="generate_max_len", check=COUNT),
    Setting("TEMPERATURE", float, "Sampling temperature.", flag="temperature",
            check=above(0, "more than 0, at which all rollouts of a prompt would be equal")),
    Setting("TOP_P", float, "Nucleus sampling; 1 keeps all tokens.", "1.0", "top_p", check=POSITIVE_SHARE),
    Setting("DYNAMIC_FILTERING", bool, "1: replace each prompt whose group teaches nothing: its mean score is not "
            "strictly inside DYNAMIC_FILTERING_RANGE. See [groups](groups.md).", flag="dynamic_filtering"),
    Setting("DYNAMIC_FILTERING_RANGE", float, "Bounds of the mean score of a group that teaches. The score is "
            "correctness, or that of your own reward.", "0 1", "dynamic_filtering_reward_range", count=2,
            only_with="DYNAMIC_FILTERING"),
    Setting("DYNAMIC_FILTERING_BATCHES", int, "A step draws at most this many times ROLLOUT_BATCH_SIZE prompts. The "
            "groups nearest to the range then fill the step.", "4", "dynamic_filtering_batches", is_ours=True,
            check=POSITIVE, only_with="DYNAMIC_FILTERING"),
)  # fmt: skip

LENGTH = (
    Setting("THINKING_BUDGET", int, "Tokens after which the thinking is cut; see [thinking "
            "budget](thinking-budget.md). With ENVIRONMENT, the budget applies to each turn. Empty: GENERATE_MAX_LEN "
            "limits thinking and answer together.", "", "thinking_budget", is_ours=True),
    Setting("ANSWER_BUDGET", int, "Tokens for the answer, with THINKING_BUDGET. Both budgets and the delimiter must "
            "fit into GENERATE_MAX_LEN.", "", "answer_budget", is_ours=True),
    Setting("THINKING_DELIMITER", str, "What ends the thinking: `harmony` (gpt-oss), `think` (`</think>`), or a text "
            "that contains one of them.", "harmony", "thinking_delimiter", is_ours=True, only_with="THINKING_BUDGET"),
    Setting("LENGTH_SCHEDULE", str, "Raises the response limit up to GENERATE_MAX_LEN: at global steps, as in "
            "`1024,2048@50,3072@100`, or once this share of the rollouts of the last 5 steps was truncated, as in "
            "`1024,3072@20%`. Evaluations always use GENERATE_MAX_LEN.", "", "length_schedule", is_ours=True),
    Setting("OVERLONG_BUFFER", float, "Tokens before the length limit over which the reward falls linearly; see [loss "
            "and length](loss-and-length.md). With ENVIRONMENT, the tokens of all turns count. Empty: no penalty.", "",
            "overlong_buffer_len"),
    Setting("OVERLONG_PENALTY", float, "Reduction of the reward at the limit. DAPO subtracts up to 1 from rewards of "
            "-1 and 1, Magistral 0.1.", "0.5", "overlong_penalty_factor", only_with="OVERLONG_BUFFER",
            check=at_least(0, "0 or more: less would reward length")),
)  # fmt: skip

REWARD = (
    Setting("REWARD", str, "Files with `reward_func`, separated by spaces, or the URL of a server; see [your own "
            "reward](own-reward.md). Empty: this project's reward."),
    Setting("REWARD_WEIGHTS", str, "A weight for each file of REWARD. The reward is the weighted sum. Empty: 1 each.",
            ""),
    Setting("JUDGE", bool, "1: Gemini judges the quality of responses; see [reward](reward.md). 0: no calls, and the "
            "reward is correctness alone."),
    Setting("JUDGE_MODELS", str, "Models to try, in order, separated by spaces or commas. Empty: no judge.",
            may_be_empty=True),
    Setting("CORRECTNESS_WEIGHT", float, "Weight of correctness in the reward.", check=NOT_NEGATIVE),
    Setting("QUALITY_WEIGHT", float, "Weight of the judge's quality. The two weights add up to 1.", check=NOT_NEGATIVE),
    Setting("JUDGE_FALLBACK", str, "The reward of a rollout on which every model fails: `correctness` alone, which "
            "favors correct rollouts; `mean_quality`, with the running mean quality of correct or of wrong rollouts; "
            "`group`, correctness alone for the whole group.", choices=("correctness", "mean_quality", "group")),
    Setting("JUDGE_UNFINISHED", bool, "1: also judge responses without a final answer, which earn at most "
            "QUALITY_WEIGHT and cost a call each. 0: their quality is 0.", "1"),
    Setting("JUDGE_TRIES", int, "Calls to each model per rollout, within the deadline.", "3", check=POSITIVE),
    Setting("JUDGE_DEADLINE", float, "Seconds per rollout for all models, including waits.", "240", check=POSITIVE),
    Setting("JUDGE_CALL_TIMEOUT", float, "Seconds per call.", "90", check=POSITIVE),
    Setting("JUDGE_RPM", int, "Your quota: requests per minute to each model, over all engines. The local server of "
            "`--tiny` has no quota.", "120", check=POSITIVE),
    Setting("JUDGE_CONCURRENCY", int, "Concurrent calls to each model.", "32", check=POSITIVE),
    Setting("JUDGE_BASE_URL", str, "Where the run sends key and prompts, without a proxy. It follows no redirects.",
            "https://generativelanguage.googleapis.com"),
)  # fmt: skip

ENVIRONMENT = (
    Setting("ENVIRONMENT", str, "Several turns with tools; see [environments](environments.md): `python`, `retrieval`, "
            "a .py file with a class Environment, or `verifiers:NAME`. The environment gives the reward. Several "
            "environments, separated by spaces, share the problems; `single` among them means single answers. Empty: "
            "single answers."),
    Setting("ENVIRONMENT_WEIGHTS", str, "Each environment's share of the lines of data, unless a line names its own. "
            "Empty: equal.", ""),
    Setting("LIBRARY", str, "For `retrieval`: a folder of .txt and .md files, or a .jsonl file with title and text.",
            ""),
    Setting("TURN_LIMIT", int, "Turns per rollout.", "8", check=POSITIVE),
    Setting("ROLLOUT_SECONDS", float, "Maximum seconds per rollout.", "300", check=above(0)),
    Setting("TOOL_SECONDS", float, "Maximum seconds per tool call.", "20", check=above(0)),
    Setting("SCORE_SECONDS", float, "Maximum seconds per `score` call.", "60", check=above(0)),
    Setting("MAX_BRANCHES", int, "Maximum extra rows of a rollout whose history was rewritten, for example by removing "
            "thinking; further rows are dropped. The actor holds all rows of a rollout in memory at once.", "3",
            check=NOT_NEGATIVE),
    Setting("TEMPLATE", str, "Format of tool results for gpt-oss: `served`, as vLLM and openai-harmony serve them, or "
            "`hub`, the JSON strings of its chat template on Hugging Face.", "served", choices=("served", "hub")),
)  # fmt: skip

ALGORITHM = (
    Setting("ADVANTAGE_ESTIMATOR", str, "How rewards become advantages; see "
            "[advantages](loss-and-length.md#advantages).", flag="advantage_estimator",
            choices=("dr_grpo", "group_norm", "rloo", "reinforce_baseline", "reinforce")),
    Setting("LOSS_AGGREGATION", str, "The weight of a token with advantage A in a rollout of L tokens and a batch of S "
            "rollouts: `sequence_mean` A / (L S), which favors long wrong rollouts; `token_mean` A / (tokens of the "
            "batch); `constant` A / (S GENERATE_MAX_LEN), as in Dr. GRPO.", flag="loss_aggregation", is_ours=True,
            choices=("sequence_mean", "token_mean", "constant")),
    Setting("POLICY_LOSS", str, "How a token's loss uses the policy ratio: a name of [the table of "
            "losses](loss-and-length.md#policy-loss).", "ppo", "policy_loss_type"),
    Setting("EPS_CLIP", float, "POLICY_LOSS=ppo and `gspo` clip the ratio to 1 plus or minus this.", flag="eps_clip",
            check=above(0)),
    Setting("CISPO_MAX_RATIO", float, "POLICY_LOSS=cispo caps the ratio, and so a token's weight, at this.", "5.0",
            "cispo_max_ratio", is_ours=True, check=at_least(1), only_with="POLICY_LOSS"),
    Setting("SAPO_TEMPERATURES", float, "With POLICY_LOSS=sapo, how fast a token's weight falls as its ratio moves "
            "away from 1: first for positive advantages, then for all others. Higher is faster.", "1.0 1.05",
            "sapo_temperatures", is_ours=True, count=2, check=above(0), only_with="POLICY_LOSS"),
    Setting("MASK_TRUNCATED", bool, "1: exclude rollouts cut at the length limit from the loss and its denominator. "
            "They count in their group's mean. See [masks](loss-and-length.md#masks).", "0", "mask_truncated",
            is_ours=True),
    Setting("KL_COEF", float, "Coefficient of a KL penalty on the reward, which costs a forward pass. The reference is "
            "the run's initial policy: MODEL, with ADAPTER if set. `-- --use_kl_loss --kl_estimator k3` moves the "
            "penalty into the loss.", flag="init_kl_coef",
            check=at_least(0, "0 or more: less would reward distance from the reference")),
    Setting("PIPELINE", bool, "1: the engines sample the next batch while the actor trains on the current one; see "
            "[pipeline](pipeline.md).", flag="pipeline", is_ours=True),
    Setting("OLD_LOG_PROBS", str, "Whose log-probs are the denominator of the policy ratio: `trainer` or `engine`. "
            "Empty: `engine` with PIPELINE=1, else `trainer`.", "", "old_log_probs", is_ours=True,
            choices=("trainer", "engine")),
    Setting("ROUTING_REPLAY", bool, "1: the actor uses the engine's choice of experts for each token; see [routing "
            "replay](parity.md#routing-replay).", "0", "routing_replay", is_ours=True),
    Setting("PARITY_LIMIT", float, "The run stops if the log-probs of engines and actor differ on the first rollouts "
            "by more than this many nats on average, or in a way that rounding does not explain. 0: no check. See "
            "[parity](parity.md).", "0.05", "parity_limit", is_ours=True,
            check=at_least(0, "nat, such as 0.05, or 0 for no check")),
    Setting("TRAIN_BATCH_SIZE", int, "Rollouts (not prompts) per optimizer step. With fewer than the rollouts of a "
            "global step, all but its first optimizer step are off-policy.", flag="train_batch_size", check=COUNT),
    Setting("MICRO_TRAIN_BATCH_SIZE", int, "Rollouts that a GPU processes at once in the update, with no effect on the "
            "objective. Empty: as many as fit; see `--plan`.", "", "micro_train_batch_size", check=COUNT),
    Setting("MICRO_ROLLOUT_BATCH_SIZE", int, "The same for log-prob passes.", "", "micro_rollout_batch_size",
            check=COUNT),
    Setting("NUM_EPISODES", int, "Passes over the training problems.", flag="num_episodes", check=COUNT),
    Setting("STEPS", int, "Global steps of the run, which the learning rate's schedule spans. A resumed run keeps "
            "them. Empty: all episodes.", flag="max_steps", is_ours=True, check=POSITIVE),
)  # fmt: skip

OPTIMIZER = (
    Setting("LEARNING_RATE", float, "Learning rate. `--plan` prints its first values.", flag="actor_learning_rate",
            check=_RATE),
    Setting("LR_WARMUP_RATIO", float, "Share of the run's optimizer steps in which the rate rises. In N such steps, "
            "the first has 1/N of LEARNING_RATE.",
            flag="lr_warmup_ratio", check=SHARE),
    # Schedules of transformers whose rates `--plan` knows.
    Setting("LR_SCHEDULER", str, "`constant`, `constant_with_warmup`, `inverse_sqrt`, or `cosine_with_min_lr`, which "
            "falls to a tenth.", flag="lr_scheduler",
            choices=("constant", "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr")),
    Setting("MAX_GRAD_NORM", float, "Scale gradients of a larger norm down to this one. 0: never.", "1.0", "max_norm",
            check=NOT_NEGATIVE),
    Setting("LORA_RANK", int, "Rank of the adapter.", flag="lora_rank"),
    Setting("LORA_ALPHA", int, "LORA_ALPHA / LORA_RANK scales the adapter.", flag="lora_alpha", check=POSITIVE),
    Setting("TARGET_MODULES", str, "What gets an adapter: projections of attention, and `experts`; see [tuning]"
            "(tuning.md#adapters-for-the-experts).", flag="target_modules", count=0),
    Setting("EXPERT_RANK", int, "Rank of each expert's adapter, for `experts` in TARGET_MODULES. Empty: LORA_RANK "
            "divided by the experts per token, and at least 1.", "", "expert_rank", is_ours=True, check=POSITIVE),
)  # fmt: skip

MEMORY = (
    Setting("ENFORCE_EAGER", bool, "1: engines without CUDA graphs, like the option `--no-graphs`: slower, with fewer "
            "ways to fail. The tiny run has 1 on a CPU, which has no graphs.", flag="enforce_eager"),
    Setting("GPU_MEMORY_UTILIZATION", float, "An engine's share of GPU memory. Empty: 0.90, or with COLOCATE=1 what "
            "the actor leaves. The tiny run gives its engine 6 GB.", "", "vllm_gpu_memory_utilization",
            check=POSITIVE_SHARE),
    Setting("EXPERTS", str, "How the actor stores experts: `packed`, in MXFP4 as in the model's files (16 GB on each "
            "of 4 GPUs), or `bf16` (234 GB in all).", "packed", "experts", is_ours=True, choices=("packed", "bf16")),
    Setting("ATTN_IMPLEMENTATION", str, "Attention: `sinks` (ours, with memory linear in the length) or `eager` "
            "(transformers'). flash_attention_2 silently drops gpt-oss's attention sinks.", "sinks",
            "attn_implementation", choices=("sinks", "eager")),
    Setting("ACTOR_SHARD", str, "`zero3` gives each GPU a part of the frozen model, and gathers each layer for use. "
            "`none` keeps the whole model on each GPU, so only the adapter's gradients travel. `engine` uses the "
            "model of the engine on the same GPU, so it sets COLOCATE=1 and an engine for each GPU.", "zero3",
            "actor_shard", is_ours=True, choices=("zero3", "none", "engine")),
    Setting("OFFLOAD", bool, "1: keep the actor's parts of the model in host memory. Empty: 1 with EXPERTS=bf16 and "
            "ACTOR_SHARD=zero3, else 0.", "", "offload", is_ours=True),
    Setting("ADAM_OFFLOAD", bool, "1: keep the optimizer's state in host memory.", "1", "adam_offload"),
    Setting("GRADIENT_CHECKPOINTING", bool, "1: recompute activations in the backward pass.", "1",
            "gradient_checkpointing"),
    Setting("PERSISTENCE_THRESHOLD", int, "Parameters with fewer elements than this stay whole on every rank. Empty: "
            "DeepSpeed's default.", "", "stage3_param_persistence_threshold", is_ours=True, check=NOT_NEGATIVE),
)  # fmt: skip

EVALUATION = (
    Setting("EVAL_STEPS", int, "Global steps between evaluations; -1: none.", flag="eval_steps", check=_INTERVAL),
    Setting("EVAL_AT_START", bool, "1: evaluate before the first step.", "1", "eval_at_start", is_ours=True),
    Setting("EVAL_TEMPERATURE", float, "Temperature in evaluations; 0: greedy.", "1.0", "eval_temperature",
            check=NOT_NEGATIVE),
    Setting("EVAL_N_SAMPLES_PER_PROMPT", int, "Sampled answers to each held-out problem, for pass@1 and pass@n, "
            "besides the greedy one. Empty: 8, or 1 with EVAL_TEMPERATURE=0.", flag="eval_n_samples_per_prompt",
            check=COUNT),
    Setting("SAVE_STEPS", int, "Global steps between checkpoints, which hold adapter and optimizer state; -1: none.",
            flag="save_steps", check=_INTERVAL),
    Setting("MAX_CHECKPOINTS", int, "Checkpoints to keep: the best by held-out score, and the newest (1: both). The "
            "last one before a fall in correctness stays in addition.", flag="max_ckpt_num", check=POSITIVE),
    Setting("CKPT_DIR", str, "Where checkpoints go. Empty: the run directory.", "", "ckpt_path"),
    Setting("METRICS_DIR", str, "Where `metrics.jsonl` and `eval.jsonl` go. Empty: the run directory.", "",
            "metrics_dir", is_ours=True),
    Setting("LOG_SAMPLES", int, "Rollouts to write per step in addition to the extreme ones. Empty: all.", "",
            "log_samples", is_ours=True, check=NOT_NEGATIVE),
    Setting("USE_TENSORBOARD", bool, "1: also write TensorBoard files into the run directory.", "1", "use_tensorboard",
            more=("1",)),
    Setting("USE_WANDB", bool, "1: log to W&B with the key in WANDB_API_KEY; see [trackers](runs.md#trackers).",
            flag="use_wandb", more=("1",)),
    Setting("USE_TRACKIO", bool, "1: log to Trackio.", "0", "use_trackio", is_ours=True),
)  # fmt: skip

FAULTS = (
    Setting("RESTARTS", int, "How often a run may restart from its newest checkpoint after a crash, until it saves a "
            "new one. 0: never. It does not restart if the same error recurs after the same step.", "3", "restarts",
            is_ours=True, check=NOT_NEGATIVE),
    Setting("HANG_MINUTES", float, "A run counts as hung if a phase (generate, train, sync, ...) takes longer than "
            "this, and longer than 5 times its usual time. A phase that the run has not completed before may take 4 "
            "times this. A hung run writes the stacks of all processes to logs/, and ends or restarts. 0: no check.",
            "30", "hang_minutes", is_ours=True, check=at_least(0, "minutes, or 0 for no check")),
    Setting("SIGTERM_SECONDS", float, "On SIGTERM (a spot machine's notice) or Ctrl-C, the run takes at most this many "
            "seconds to save its last completed step, then ends within 10. A second signal ends it at once. 0: the "
            "first does.", "90", "sigterm_seconds", is_ours=True, check=at_least(0, "seconds, or 0 to end at once")),
)  # fmt: skip

GROUPS = {
    "Model and data": MODEL,
    "Chat template": CHAT,
    "GPUs": GPUS,
    "Rollouts": ROLLOUT,
    "Length": LENGTH,
    "Reward": REWARD,
    "Environments": ENVIRONMENT,
    "Algorithm": ALGORITHM,
    "Optimizer and adapter": OPTIMIZER,
    "Engines and memory": MEMORY,
    "Evaluation, checkpoints and logs": EVALUATION,
    "Faults": FAULTS,
}
SETTINGS = {setting.name: setting for group in GROUPS.values() for setting in group}
# The engines call reward and environment, so these reach every worker, as variables named GRPO_NAME.
EXPORTED = tuple(setting.name for setting in (*REWARD[1:], *ENVIRONMENT))
BY_FLAG = {flag: setting for setting in SETTINGS.values() for flag in (setting.flag, setting.also) if flag}
