"""Names for what OpenRLHF, vLLM, DeepSpeed and transformers pass to us.

For mypy most are `Any`: OpenRLHF and DeepSpeed ship no types, and our hooks add attributes to the others. What an
upgrade renames is found by the tests that use the real objects. Nothing here imports them.
"""

import argparse
from typing import Any

Arguments = argparse.Namespace  # a run's flags, OpenRLHF's and ours; a test compares every one that is read
Tokenizer = Any  # of transformers
FastTokenizer = Any  # one with ``is_fast``, so with a ``backend_tokenizer``

# On the controller
EngineActor = Any  # Ray's handle of an ``LLMRayActor``
ActorGroup = Any  # ``RayActorGroup``: all ranks of the actor. Calls return Ray's references.
PromptDataset = Any  # OpenRLHF's: ``prompts`` and ``datasources``
PromptLoader = Any  # the ``StatefulDataLoader`` of an episode's prompts

# In an engine's Ray actor
Engine = Any  # the ``LLMRayActor`` itself; its ``llm`` is an AsyncLLM
AsyncLLM = Any  # vLLM's
Streams = Any  # whose ``generate`` streams: an AsyncLLM, or :class:`eval.engine.LoopedLLM`
ROLLOUT = "routing_of"  # in a request's extra_args: the rollout whose choices of experts our worker records

# In an engine's worker, which may have a part of each weight
LinearLayer = Any  # vLLM's, with the adapter's buffers: :class:`grpo.lora.vllm_lora.LoraLinearMethod`
Attention = Any  # gpt-oss's: ``qkv_proj`` and ``o_proj`` are LinearLayers
Experts = Any  # a layer's, with the adapter's buffers: :func:`grpo.lora.vllm_expert_lora.attach`

# On a rank of the actor
Actor = Any  # OpenRLHF's policy; ``model`` is a TrainerEngine, and the patch ``token_scores`` adds ``allocated``
ModelOutput = Any  # of a micro-batch: ``["logits"]`` of the last positions; ``scores`` is a ``TokenScores`` of all
TrainerEngine = Any  # DeepSpeed's ``DeepSpeedEngine``; ``module`` is a PeftModel, ``optimizer`` a ZeroOptimizer
ZeroOptimizer = Any  # ``DeepSpeedZeroOptimizer_Stage3``: this rank's ranges of the trained parameters
# A parameter that ZeRO-3 has partitioned. ``ds_tensor`` is this rank's range ``[elements]``, padded to the same size on
# every rank; its own ``ds_numel`` counts the padding. ``ds_shape`` and ``ds_numel`` are those of the whole parameter.
ZeroParameter = Any
