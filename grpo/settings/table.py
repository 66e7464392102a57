"""All settings of a run, in the order of docs/settings.md. Those without a default stand in train_grpo.sh.

A new setting is an entry here and the code that uses it; the trainer gets it as `args.FLAG`. Then run
`python -P -m grpo.settings --page > docs/settings.md`.
"""

from grpo.settings.setting import POSITIVE_SHARE, SHARE, Check, Setting, above, at_least

COUNT = at_least(1)  # of something that the plan divides by, so it is checked first
POSITIVE = at_least(1)
NOT_NEGATIVE = at_least(0)
HIGHEST_RATE = 0.1  # Adam moves each weight of the adapter by about the rate: one step would replace all of them
CLIPPING_LOSSES = ("ppo", "gspo")  # of POLICY_LOSS: those that read EPS_CLIP
_INTERVAL = Check("1 or more, or -1 for never", lambda value: value >= 1 or value == -1)
_RATE = Check(
    f"a number above 0 and below {HIGHEST_RATE:g}: 1e-6 to 1e-4 is usual, and 2e-3 for the tiny model",
    lambda value: 0 < value < HIGHEST_RATE,
)  # fmt: skip

MODEL = (
    Setting("MODEL", str, "The model to train: a folder, or a hub id that is already in the hub's cache.",
            flag="pretrain"),
    Setting("ADAPTER", str, "A LoRA adapter of MODEL to start from: a folder in PEFT's format, such as another run's "
            "`final/`. LORA_RANK, LORA_ALPHA, and TARGET_MODULES must match it. See [starting from an adapter]"
            "(runs.md#starting-from-an-adapter). Empty: a new adapter, which at first changes nothing.", "", "adapter",
            is_ours=True),
    Setting("ENGINE_MODEL", str, "What the engines load. Empty: MODEL.", "", "engine_model", is_ours=True),
    Setting("TRAIN_DATA", str, "Training problems, see [data](data.md). Empty: data/prepared/train.jsonl.",
            flag="prompt_data"),
    Setting("EVAL_DATA", str, "Held-out problems. Empty: eval.jsonl beside TRAIN_DATA, as data.prepare writes it.",
            flag="eval_dataset"),
    Setting("NAME", str, "First part of the run directory's name. Empty: the last part of MODEL.", ""),
    Setting("SEED", int, "Seed of all random choices.", "42", "seed",
            check=Check("a number from 0 to 4294967295", lambda value: 0 <= value < 2**32)),
)  # fmt: skip

CHAT = (
    Setting("REASONING_EFFORT", str, "Reasoning effort for the chat template. Empty: the template's default, medium.",
            "", "reasoning_effort", is_ours=True, choices=("low", "medium", "high")),
    Setting("TEMPLATE_VARIABLES", str, "More variables of the chat template, as JSON: "
            '`{"model_identity": "You are a mathematician."}`.', "", "template_variables", is_ours=True),
    Setting("TEMPLATE_DATE", str, "The day that gpt-oss's template names, such as 2030-01-02. Empty: the day on which "
            "the run starts, also after a resume.", "", "template_date", is_ours=True),
)  # fmt: skip

GPUS = (
    Setting("NUM_ENGINES", int, "vLLM engines in the whole run.", flag="vllm_num_engines", check=COUNT),
    Setting("ENGINE_TP", int, "GPUs per engine (tensor parallelism). An engine never spans nodes.",
            flag="vllm_tensor_parallel_size", check=COUNT),
    Setting("ACTOR_GPUS", int, "GPUs that train, in the whole run.", flag="actor_num_gpus_per_node", check=COUNT,
            also="ref_num_gpus_per_node"),
    Setting("COLOCATE", bool, "1: engines and actor share GPUs and take turns. NUM_ENGINES x ENGINE_TP and ACTOR_GPUS "
            "must then be equal.", flag="colocate_all_models"),
    Setting("NODES", int, "Nodes of the run, which form the Ray cluster at RAY_ADDRESS, see [cluster](cluster.md).",
            "1", "nodes", is_ours=True, check=COUNT),
    Setting("GPUS_PER_NODE", int, "GPUs of each node. Empty: those of `--gpus` if NODES is above 1.", "",
            "gpus_per_node", is_ours=True, check=COUNT),
    Setting("GPU_GB", float, "Memory of a GPU in GB, for `--plan` on another machine. Empty: that of this machine's "
            "GPUs, or 80.", "", "gpu_gb", is_ours=True, check=above(0)),
)  # fmt: skip

ROLLOUT = (
    Setting("ROLLOUT_BATCH_SIZE", int, "Prompts per global step.", flag="rollout_batch_size", check=COUNT),
    Setting("N_SAMPLES_PER_PROMPT", int, "Rollouts per prompt: the size of a group.", flag="n_samples_per_prompt",
            check=COUNT),
    Setting("PROMPT_MAX_LEN", int, "Longest prompt, in tokens.", flag="prompt_max_len", check=COUNT),
    Setting("GENERATE_MAX_LEN", int, "Longest response, in tokens. A response that is cut before its final answer is "
            "wrong. `--plan` says which lengths fit.", flag="generate_max_len", check=COUNT),
    Setting("TEMPERATURE", float, "Sampling temperature.", flag="temperature",
            check=above(0, "more than 0, at which all rollouts of a prompt would be equal")),
    Setting("TOP_P", float, "Nucleus sampling; 1 keeps all tokens.", "1.0", "top_p", check=POSITIVE_SHARE),
    Setting("DYNAMIC_FILTERING", bool, "1: draw another prompt for each one whose rollouts teach nothing, because "
            "their mean score is not strictly inside DYNAMIC_FILTERING_RANGE. See [groups](groups.md).",
            flag="dynamic_filtering"),
    Setting("DYNAMIC_FILTERING_RANGE", float, "Lower and upper mean score of a group that teaches. The score is "
            "correctness, or that of your own reward.", "0 1", "dynamic_filtering_reward_range", count=2,
            only_with="DYNAMIC_FILTERING"),
    Setting("DYNAMIC_FILTERING_BATCHES", int, "A step draws at most this many times ROLLOUT_BATCH_SIZE prompts; then "
            "the groups nearest to the range fill it.", "4", "dynamic_filtering_batches", is_ours=True, check=POSITIVE,
            only_with="DYNAMIC_FILTERING"),
    Setting("RETIRE_AFTER", int, "Retire a problem after this many groups in a row in which every rollout had the "
            "score 1. Empty: never.", "", "retire_after", is_ours=True, check=POSITIVE),
    Setting("RETIRE_FOR", int, "Global steps for which a retired problem is not drawn. One more such group retires it "
            "again.", "50", "retire_for", is_ours=True, check=POSITIVE, only_with="RETIRE_AFTER"),
    Setting("DROP_REPETITION", float, "Leave a rollout out of the update and of its group's mean if more than this "
            "share of the 3-grams in some 512 tokens occurred earlier in them, such as 0.8. Empty: none.", "",
            "drop_repetition", is_ours=True, check=Check("a share between 0 and 1, such as 0.8", lambda v: 0 < v < 1)),
    Setting("DROP_GIBBERISH", float, "The same if some 64 tokens have a higher mean surprise to the engine, in nat per "
            "token, such as 5. Empty: none.", "", "drop_gibberish", is_ours=True,
            check=above(0, "nat per token, such as 5")),
)  # fmt: skip

LENGTH = (
    Setting("THINKING_BUDGET", int, "Tokens after which the thinking is cut, see [thinking budget]"
            "(thinking-budget.md). Empty: GENERATE_MAX_LEN limits thinking and answer together. With ENVIRONMENT, "
            "it applies to each turn.", "", "thinking_budget", is_ours=True),
    Setting("ANSWER_BUDGET", int, "Tokens of the answer, with THINKING_BUDGET. Both and the delimiter must fit into "
            "GENERATE_MAX_LEN.", "", "answer_budget", is_ours=True),
    Setting("THINKING_DELIMITER", str, "What ends the thinking: harmony (gpt-oss), think (`</think>`), or a text with "
            "one of them in it.", "harmony", "thinking_delimiter", is_ours=True, only_with="THINKING_BUDGET"),
    Setting("LENGTH_SCHEDULE", str, "Raises the limit of responses up to GENERATE_MAX_LEN: at global steps, "
            "`1024,2048@50,3072@100`, or once this share of rollouts was truncated in the last 5 steps, "
            "`1024,3072@20%`. Evaluations always have GENERATE_MAX_LEN.", "", "length_schedule", is_ours=True),
    Setting("OVERLONG_BUFFER", float, "The number of tokens before the length limit over which the reward falls "
            "linearly, see [loss and length](loss-and-length.md). Empty: no penalty. With ENVIRONMENT, the tokens of "
            "all turns count.", "", "overlong_buffer_len"),
    Setting("OVERLONG_PENALTY", float, "The reduction at the limit. DAPO subtracts up to 1 from rewards of -1 and 1, "
            "Magistral 0.1.", "0.5", "overlong_penalty_factor", only_with="OVERLONG_BUFFER",
            check=at_least(0, "0 or more: less would reward length")),
)  # fmt: skip

REWARD = (
    Setting("REWARD", str, "Files with `reward_func`, separated by blanks, see [your own reward](own-reward.md), or "
            "the URL of a server. Empty: this project's reward."),
    Setting("REWARD_WEIGHTS", str, "A weight for each file of REWARD; the reward is their weighted sum. Empty: 1 each.",
            ""),
    Setting("JUDGE", bool, "1: Gemini judges the quality of responses, see [reward](reward.md). 0: no model is called, "
            "and the reward is correctness alone."),
    Setting("JUDGE_MODELS", str, "Models in the order in which they are tried, separated by blanks or commas. Empty: "
            "no judge.", may_be_empty=True),
    Setting("CORRECTNESS_WEIGHT", float, "Weight of correctness in the reward.", check=NOT_NEGATIVE),
    Setting("QUALITY_WEIGHT", float, "Weight of the judge's quality. The two add up to 1.", check=NOT_NEGATIVE),
    Setting("JUDGE_FALLBACK", str, "The reward of a rollout on which every model fails: `correctness` alone, which "
            "favors correct rollouts; `mean_quality`, the running mean quality of correct or of wrong rollouts; "
            "`group`, correctness alone for all rollouts of its prompt.",
            choices=("correctness", "mean_quality", "group")),
    Setting("JUDGE_UNFINISHED", bool, "1: also judge responses without a final answer. They earn at most "
            "QUALITY_WEIGHT, and each costs a call. 0: their quality is 0.", "1"),
    Setting("JUDGE_TRIES", int, "Calls to each model per rollout, if the deadline leaves time.", "3", check=POSITIVE),
    Setting("JUDGE_DEADLINE", float, "Seconds per rollout, over all models and with all waiting.", "240",
            check=POSITIVE),
    Setting("JUDGE_CALL_TIMEOUT", float, "Seconds per call.", "90", check=POSITIVE),
    Setting("JUDGE_RPM", int, "Your quota: requests per minute to each model, over all engines. The local server of "
            "`--tiny` has no quota.", "120", check=POSITIVE),
    Setting("JUDGE_TPM", int, "Your quota: prompt tokens per minute to each model.", "1000000", check=POSITIVE),
    Setting("JUDGE_CONCURRENCY", int, "Concurrent calls to each model.", "32", check=POSITIVE),
    Setting("JUDGE_PRICE", float, 'Prices for `--plan` in USD: of a million prompt tokens and of a million tokens of '
            'replies, such as "2 12". Empty: unknown.', "", count=2, check=NOT_NEGATIVE),
    Setting("JUDGE_BASE_URL", str, "Where key and prompts are sent. Variables of google-genai have no effect, and "
            "redirects are not followed.", "https://generativelanguage.googleapis.com"),
    Setting("JUDGE_PROXY", bool, "1: use the proxy in HTTPS_PROXY or ALL_PROXY.", "0"),
)  # fmt: skip

ENVIRONMENT = (
    Setting("ENVIRONMENT", str, "Several turns with tools instead of single answers, see [environments]"
            "(environments.md): `python`, `retrieval`, a .py file with a class Environment, or `verifiers:NAME`. "
            "Several, separated by blanks, share the problems; `single` among them is single answers. The environment "
            "gives the reward. Empty: single answers."),
    Setting("ENVIRONMENT_WEIGHTS", str, "Shares of the lines of data for several environments, unless a line names its "
            "own. Empty: equal.", ""),
    Setting("LIBRARY", str, "For `retrieval`: a folder of .txt and .md files, or a .jsonl file with title and text.",
            ""),
    Setting("TURN_LIMIT", int, "Turns per rollout.", "8", check=POSITIVE),
    Setting("ROLLOUT_SECONDS", float, "Seconds per rollout.", "300", check=above(0)),
    Setting("TOOL_SECONDS", float, "Seconds per tool call.", "20", check=above(0)),
    Setting("SCORE_SECONDS", float, "Seconds per score.", "60", check=above(0)),
    Setting("MAX_BRANCHES", int, "Additional rows of a rollout whose history was rewritten, for example because "
            "thinking was removed. The actor holds all rows of a rollout in memory at once.", "3", check=NOT_NEGATIVE),
    Setting("TEMPLATE", str, "How gpt-oss reads tool results: `served`, as vLLM and openai-harmony serve them, or "
            "`hub`, as JSON strings, as its chat template on the hub writes them.", "served",
            choices=("served", "hub")),
)  # fmt: skip

ALGORITHM = (
    Setting("ADVANTAGE_ESTIMATOR", str, "How rewards become advantages.", flag="advantage_estimator",
            choices=("dr_grpo", "group_norm", "rloo", "reinforce_baseline", "reinforce")),
    Setting("LOSS_AGGREGATION", str, "The weight of a token with advantage A in a rollout of L tokens, with S rollouts "
            "in the batch: `sequence_mean` A / (L S), which favors long wrong rollouts; `token_mean` A / (tokens of "
            "the batch); `constant` A / (S GENERATE_MAX_LEN), as in Dr. GRPO.", flag="loss_aggregation", is_ours=True,
            choices=("sequence_mean", "token_mean", "constant")),
    Setting("POLICY_LOSS", str, "How the loss of a token uses the policy ratio, see "
            "[loss](loss-and-length.md#policy-loss): `ppo` and `gspo` (one ratio for each rollout) clip it, `cispo` "
            "bounds the weight that it gives the token, `sapo` lowers this weight gradually.", "ppo",
            "policy_loss_type", choices=(*CLIPPING_LOSSES, "cispo", "sapo")),
    Setting("EPS_CLIP", float, "With POLICY_LOSS=ppo or gspo, the ratio is clipped to 1 plus or minus this.",
            flag="eps_clip", check=above(0)),
    Setting("CISPO_MAX_RATIO", float, "With POLICY_LOSS=cispo, the largest weight of a token: a larger ratio counts as "
            "this.", "5.0", "cispo_max_ratio", is_ours=True, check=at_least(1), only_with="POLICY_LOSS"),
    Setting("SAPO_TEMPERATURES", float, "With POLICY_LOSS=sapo, how fast the weight of a token falls as its ratio "
            "moves away from 1: for positive advantages, and for all others. Higher is faster.", "1.0 1.05",
            "sapo_temperatures", is_ours=True, count=2, check=above(0), only_with="POLICY_LOSS"),
    Setting("MASK_TRUNCATED", bool, "1: leave rollouts that were cut at the length limit out of the loss and of its "
            "denominator. They count in the mean of their group. See [masks](loss-and-length.md#masks).", "0",
            "mask_truncated", is_ours=True),
    Setting("MASK_ZERO_SPREAD", bool, "1: leave the rollouts of a group without spread out of the loss's denominator, "
            "and out of KL and entropy terms. Their advantages are 0 anyway.", "0", "mask_zero_spread", is_ours=True),
    Setting("KL_COEF", float, "Coefficient of a KL penalty, which is subtracted from the reward. The reference is the "
            "policy that the run starts from: MODEL, with ADAPTER if it is set. Costs a forward pass. `-- "
            "--use_kl_loss --kl_estimator k3` moves it into the loss.", flag="init_kl_coef",
            check=at_least(0, "0 or more: less would reward distance from the reference")),
    Setting("PIPELINE", bool, "1: the engines sample the next batch while the actor trains on this one, see [pipeline]"
            "(pipeline.md).", flag="pipeline", is_ours=True),
    Setting("PARTIAL_ROLLOUTS", int, "With PIPELINE=1: the number of prompts that may have unfinished rollouts at the "
            "sync, see [unfinished rollouts](pipeline.md#unfinished-rollouts). 0: none.", "0", "partial_rollouts",
            is_ours=True, only_with="PARTIAL_ROLLOUTS", check=NOT_NEGATIVE),
    Setting("PARTIAL_POLICIES", int, "How many policies may continue such a rollout.", "2", "partial_policies",
            is_ours=True, only_with="PARTIAL_ROLLOUTS", check=at_least(2)),
    Setting("OLD_LOG_PROBS", str, "Whose log-probs of the rollouts are the denominator of the ratio: `trainer` or "
            "`engine`. Empty: engine with PIPELINE=1, else trainer.", "", "old_log_probs", is_ours=True,
            choices=("trainer", "engine")),
    Setting("ROUTING_REPLAY", bool, "1: the actor takes the engine's choice of experts for each token, see [routing "
            "replay](parity.md#routing-replay).", "0", "routing_replay", is_ours=True),
    Setting("PARITY_LIMIT", float, "The run stops if engines and actor differ on the first rollouts by more than this, "
            "in nat on average, or in a way that rounding does not explain. 0: no check. See [parity](parity.md).",
            "0.05", "parity_limit", is_ours=True, check=at_least(0, "nat, such as 0.05, or 0 for no check")),
    Setting("TRAIN_BATCH_SIZE", int, "Rollouts (not prompts) of an optimizer step. 64 rollouts in batches of 8 are 8 "
            "optimizer steps; all but the first are off-policy.", flag="train_batch_size", check=COUNT),
    Setting("MICRO_TRAIN_BATCH_SIZE", int, "Rollouts that a GPU computes at once in the update; does not change the "
            "objective. Empty: as many as fit, see `--plan`.", "", "micro_train_batch_size", check=COUNT),
    Setting("MICRO_ROLLOUT_BATCH_SIZE", int, "The same in passes for log-probs.", "", "micro_rollout_batch_size",
            check=COUNT),
    Setting("NUM_EPISODES", int, "Passes over the training problems.", flag="num_episodes", check=COUNT),
    Setting("STEPS", int, "Global steps after which the run ends; the schedule of the learning rate stays that of all "
            "episodes. Empty: all episodes.", flag="max_steps", is_ours=True, check=POSITIVE),
)  # fmt: skip

OPTIMIZER = (
    Setting("LEARNING_RATE", float, "Learning rate. `--plan` prints that of the first steps.",
            flag="actor_learning_rate", check=_RATE),
    Setting("LR_WARMUP_RATIO", float, "Share of the optimizer steps of all episodes in which the rate rises.",
            flag="lr_warmup_ratio", check=SHARE),
    # Schedules of transformers that accept `min_lr`, which OpenRLHF always passes, and need no metric.
    Setting("LR_SCHEDULER", str, "Schedule of the learning rate.", flag="lr_scheduler", choices=(
        "constant", "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr", "cosine_warmup_with_min_lr")),
    Setting("MAX_GRAD_NORM", float, "Gradients with a larger norm are scaled down to this one. 0: never.", "1.0",
            "max_norm", check=NOT_NEGATIVE),
    Setting("LORA_RANK", int, "Rank of the adapter.", flag="lora_rank"),
    Setting("LORA_ALPHA", int, "The adapter is scaled by this / LORA_RANK.", flag="lora_alpha", check=POSITIVE),
    Setting("TARGET_MODULES", str, "What has an adapter: projections of the attention, and `experts`, see [tuning]"
            "(tuning.md#adapters-of-the-experts).", flag="target_modules", count=0),
    Setting("EXPERT_RANK", int, "Rank of each expert's adapter, for `experts` in TARGET_MODULES. Empty: LORA_RANK "
            "divided by the experts of a token, and at least 1.", "", "expert_rank", is_ours=True, check=POSITIVE),
)  # fmt: skip

MEMORY = (
    Setting("ENFORCE_EAGER", bool, "1: engines without CUDA graphs. The adapter is a side path in their layers, which "
            "is tested with torch.compile on CPU, and not in CUDA graphs.", "1", "enforce_eager"),
    Setting("GPU_MEMORY_UTILIZATION", float, "An engine's share of a GPU. Empty: 0.90, or with COLOCATE=1 what the "
            "actor leaves.", "", "vllm_gpu_memory_utilization", check=POSITIVE_SHARE),
    Setting("EXPERTS", str, "How the actor holds experts: `packed` in MXFP4 as in the files, 16 GB on each of 4 GPUs, "
            "or `bf16`, 234 GB.", "packed", "experts", is_ours=True, choices=("packed", "bf16")),
    Setting("ATTN_IMPLEMENTATION", str, "`sinks` (ours, in memory linear in the length) or `eager` (transformers'). "
            "flash_attention_2 drops gpt-oss's attention sinks silently.", "sinks", "attn_implementation",
            choices=("sinks", "eager")),
    Setting("ACTOR_SHARD", str, "`zero3` gives each GPU a part of the frozen model, and gathers a layer when it is "
            "used. `none` keeps the whole model on each GPU, so that only gradients of the adapter travel.", "zero3",
            "actor_shard", is_ours=True, choices=("zero3", "none")),
    Setting("OFFLOAD", bool, "1: the actor's parts of the model are kept in host memory. Empty: 1 with EXPERTS=bf16 "
            "and ACTOR_SHARD=zero3, else 0.", "", "offload", is_ours=True),
    Setting("ADAM_OFFLOAD", bool, "1: the optimizer's state is kept in host memory.", "1", "adam_offload"),
    Setting("GRADIENT_CHECKPOINTING", bool, "1: recompute activations in the backward pass.", "1",
            "gradient_checkpointing"),
    Setting("PERSISTENCE_THRESHOLD", int, "Parameters with fewer elements stay whole on every rank. Empty: DeepSpeed's "
            "default.", "", "stage3_param_persistence_threshold", is_ours=True, check=NOT_NEGATIVE),
)  # fmt: skip

EVALUATION = (
    Setting("EVAL_STEPS", int, "Global steps between evaluations; -1: none.", flag="eval_steps", check=_INTERVAL),
    Setting("EVAL_AT_START", bool, "1: evaluate before the first step.", "1", "eval_at_start", is_ours=True),
    Setting("EVAL_TEMPERATURE", float, "Temperature of evaluations. 0 makes the samples greedy.", "1.0",
            "eval_temperature", check=NOT_NEGATIVE),
    Setting("EVAL_N_SAMPLES_PER_PROMPT", int, "Samples of each held-out problem, for pass@1 and pass@n, besides the "
            "greedy answer. Empty: 8, or 1 with EVAL_TEMPERATURE=0.", flag="eval_n_samples_per_prompt", check=COUNT),
    Setting("SAVE_STEPS", int, "Global steps between checkpoints, which hold adapter and optimizer; -1: none.",
            flag="save_steps", check=_INTERVAL),
    Setting("MAX_CHECKPOINTS", int, "How many of the newest checkpoints to keep. The checkpoint with the best held-out "
            "score and the last one before a fall of correctness are always kept too.", flag="max_ckpt_num",
            check=POSITIVE),
    Setting("CKPT_DIR", str, "Where checkpoints go. Empty: the run directory.", "", "ckpt_path"),
    Setting("METRICS_DIR", str, "Where metrics.jsonl and eval.jsonl go. Empty: the run directory.", "", "metrics_dir",
            is_ours=True),
    Setting("LOG_SAMPLES", int, "Rollouts per step that are written in addition to its extremes. Empty: all.", "",
            "log_samples", is_ours=True, check=NOT_NEGATIVE),
    Setting("USE_TENSORBOARD", bool, "1: also write TensorBoard files into the run directory.", "1", "use_tensorboard",
            more=("1",)),
    Setting("USE_WANDB", bool, "1: log to W&B, whose key is WANDB_API_KEY, see [trackers](runs.md#trackers).",
            flag="use_wandb", more=("1",)),
    Setting("USE_TRACKIO", bool, "1: log to Trackio.", "0", "use_trackio", is_ours=True),
)  # fmt: skip

FAULTS = (
    Setting("RESTARTS", int, "How often a run may restart from its newest checkpoint after a crash, until it saves a "
            "new one; 0: never. It does not restart if the same error occurs again after the same step.",
            "3", "restarts", is_ours=True, check=NOT_NEGATIVE),
    Setting("HANG_MINUTES", float, "A run counts as hung if a phase (generate, train, sync, ...) takes longer than "
            "this, and longer than 5 times its usual time. A phase that the run has not completed before may take 4 "
            "times this. The stacks of all processes are written to logs/, and the run ends or restarts. 0: no check.",
            "30", "hang_minutes", is_ours=True, check=at_least(0, "minutes, or 0 for no check")),
    Setting("SIGTERM_SECONDS", float, "On SIGTERM (a spot machine's notice) or Ctrl-C, the run takes at most this many "
            "seconds to save its last completed step, then ends within 10. A second signal ends it at once. 0: the "
            "first does.", "90", "sigterm_seconds", is_ours=True, check=at_least(0, "seconds, or 0 to end at once")),
    Setting("STOP_FALL", float, "Save and end the run with code 3 if the held-out score falls by this much below its "
            "best, such as 0.1. Empty: never.", "", "stop_fall", is_ours=True, check=POSITIVE_SHARE),
    Setting("STOP_NON_FINITE", bool, "1: end the run with code 3 if the loss is not finite; it is not saved.", "0",
            "stop_non_finite", is_ours=True),
    Setting("STOP_DISK_GB", float, "Save and end the run with code 3 if a disk has fewer GB left than this. Empty: "
            "never.", "", "stop_disk_gb", is_ours=True, check=above(0)),
    Setting("STOP_JUDGE_FAILED", float, "Save and end the run with code 3 if the judge fails on a larger share of the "
            "rollouts of 3 steps in a row, such as 0.5. Empty: never.", "", "stop_judge_failed", is_ours=True,
            check=Check("a share below 1", lambda value: 0 <= value < 1)),
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
