"""Rollouts with a thinking budget: an executor for OpenRLHF's ``--agent_func_path``.

OpenRLHF's single-turn executor still handles prompt, reward and logs; only the generation differs. This file imports
OpenRLHF although it is no hook: OpenRLHF loads it by path, and its executor is the base class.
"""

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf.utils.agent import SingleTurnAgentExecutor

from grpo.rollout.budgeted_rollout import Rollout, budgeted_response
from grpo.rollout.thinking import Budget, Delimiter, ThinkingSettings
from grpo.stack.upstream.engine import Engine, Streams
from grpo.stack.upstream.tokenizer import Tokenizer

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


class AgentExecutor(SingleTurnAgentExecutor):
    """OpenRLHF loads this class by the name of this file, in each engine, and calls it without arguments.

    Args:
        environ: the source of the settings; None for this process's environment.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.settings = ThinkingSettings.from_environment(os.environ if environ is None else environ)
        super().__init__(self.settings.reward.split(",") if self.settings.reward else None)

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
        engine = _Budgeted(llm_engine.llm, self.settings.delimiter(hf_tokenizer), self.settings.budget, max_length)
        output = await super().execute(prompt, label, sampling_params, max_length, hf_tokenizer, engine)
        rollout = engine.rollout
        output.update(rollout.trajectory.as_response())
        if sampling_params.logprobs is None:
            output["rollout_log_probs"] = None
        else:
            output["engine"] = rollout.account.as_dict()
        output["extra_logs"] = {**output["extra_logs"], **rollout.logs()}
        return output


class _Budgeted:
    """The engine that the single-turn executor sees: its one call is a rollout with a budget."""

    def __init__(self, llm: Streams, delimiter: Delimiter, budget: Budget, max_length: int) -> None:
        self._arguments = llm, delimiter, budget, max_length
        self.rollout = Rollout()

    async def generate(self, prompt: list[int], params: "SamplingParams") -> SimpleNamespace:
        llm, delimiter, budget, max_length = self._arguments
        self.rollout = await budgeted_response(llm, prompt, params, delimiter, budget, max_length)
        reason = "length" if self.rollout.is_truncated else "stop"
        output = SimpleNamespace(token_ids=self.rollout.response, finish_reason=reason, logprobs=None)
        return SimpleNamespace(outputs=[output])
