"""The file for ``--agent_func_path``: multi-turn rollouts in the environment that ENVIRONMENT names.

OpenRLHF loads it by its path in every engine, so the checkout must be on PYTHONPATH. It accepts only a subclass of its
base class, which is why this file imports OpenRLHF although it is no hook.
"""

import functools
import os
from typing import TYPE_CHECKING, Any

from openrlhf.utils.agent import AgentExecutorBase

from grpo.environments.environment import load
from grpo.environments.settings import KEY, EnvironmentSettings
from grpo.rollout import thinking
from grpo.rollout.chat_template import from_environment
from grpo.rollout.harmony import template_for
from grpo.rollout.multi_turn import EnginePolicy, roll_out
from grpo.stack.upstream import Engine, FastTokenizer

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


class AgentExecutor(AgentExecutorBase):
    """Makes an environment for each rollout. Limits and name come from the variables of ``train_grpo.sh``."""

    def __init__(self) -> None:
        self._settings = EnvironmentSettings.from_variables(os.environ)
        self._kinds = {member.name: load(member.source) for member in self._settings.mixture.members}
        self._thinking = thinking.read_settings(os.environ)

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: "SamplingParams",
        max_length: int,
        hf_tokenizer: FastTokenizer,
        llm_engine: Engine,
    ) -> dict[str, Any]:
        """Return the response of one rollout, see :func:`grpo.rollout.multi_turn.roll_out`.

        Args:
            prompt: `prompt` of the data file, not rendered.
            max_length: of prompt and turns together, in tokens.
        """
        template = template_for(hf_tokenizer, from_environment(os.environ))
        ours = self._thinking
        limits = (ours.read_delimiter(hf_tokenizer), ours.budget) if ours else None
        policy = EnginePolicy(template, llm_engine, sampling_params, max_length, limits)
        settings, mixture = self._settings, self._settings.mixture
        name = (sampling_params.extra_args or {}).get(KEY, mixture.names[0])
        make = functools.partial(self._kinds[name], prompt, label)
        _, response = await roll_out(make, policy, settings.limits, settings.max_rows)
        response["extra_logs"] |= mixture.logs(name, response)
        return {"prompt": prompt, "label": label, **response}
