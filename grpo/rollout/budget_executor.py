"""Rollouts with a thinking budget: an executor for OpenRLHF's ``--agent_func_path``.

OpenRLHF's single-turn executor still handles prompt, reward and logs; only the generation differs. This file imports
OpenRLHF although it is no hook: OpenRLHF loads it by path, and its executor is the base class.
"""

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf.utils.agent import SingleTurnAgentExecutor

from grpo.rollout import thinking
from grpo.rollout.budgeted_rollout import Rollout, budgeted_response
from grpo.stack.problem import UserError
from grpo.stack.upstream import Engine, Tokenizer

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


class AgentExecutor(SingleTurnAgentExecutor):
    """OpenRLHF loads this class by the name of this file, in each engine. The engine's variables hold its settings."""

    def __init__(self) -> None:
        settings = thinking.read_settings(os.environ)
        if settings is None:
            raise UserError("this executor has no thinking budget", "set --thinking_budget, not --agent_func_path")
        self.settings = settings
        super().__init__(settings.reward.split(",") if settings.reward else None)

    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: "SamplingParams",
        max_length: int,
        hf_tokenizer: Tokenizer,
        llm_engine: Engine,
    ) -> dict[str, Any]:
        """Return the response to one prompt in OpenRLHF's form; its logs have the keys of `Rollout.logs`.

        Args:
            sampling_params: ``max_tokens`` bounds the whole response.
            max_length: tokens of prompt and response together.
        """
        limits = self.settings.read_delimiter(hf_tokenizer), self.settings.budget, max_length
        made: list[Rollout] = []

        async def generate(tokens: list[int], params: "SamplingParams") -> SimpleNamespace:
            rollout = await budgeted_response(llm_engine.llm, tokens, params, *limits)
            made.append(rollout)
            reason = "length" if rollout.is_truncated else "stop"
            output = SimpleNamespace(token_ids=rollout.response, finish_reason=reason, logprobs=None)
            return SimpleNamespace(outputs=[output])

        engine = SimpleNamespace(generate=generate)
        output = await super().execute(prompt, label, sampling_params, max_length, hf_tokenizer, engine)
        [rollout] = made  # the base class calls generate once
        output |= rollout.trajectory.as_response()
        if sampling_params.logprobs is None:
            output["rollout_log_probs"] = None
        else:
            output["engine"] = rollout.trajectory.account()
        output["extra_logs"] = {**output["extra_logs"], **rollout.logs()}
        return output
