"""One multi-turn rollout on an engine, in the form that OpenRLHF expects from an agent executor.

A turn's prompt is all earlier tokens, unchanged, and what the template puts between turns. If the history renders to
other tokens, because thinking was dropped or messages were edited, a new row branches off. The prompt of a branch is
not trained on. Every sampled token is trained once, in the row in which the engine drew it.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from grpo.environments.conversation import EnvironmentFault, Outcome, play
from grpo.environments.environment import ContextFull, Environment, Message
from grpo.environments.settings import RolloutLimits
from grpo.rollout.budgeted_rollout import Rollout, budgeted_response, merge_turn_logs
from grpo.rollout.engine import ids_only
from grpo.rollout.harmony import Piece, Template
from grpo.rollout.thinking import Budget, Delimiter
from grpo.rollout.trajectory import Call, Decode, Origin, Trajectory, describe
from grpo.stack.upstream import Engine

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
logger = logging.getLogger("openrlhf.grpo.rollout")

SEED_STRIDE = 1_000_003  # rollouts of a prompt have adjacent seeds; those of its turns are far apart


class RolloutHistory:
    """The tokens of one rollout: one row while its history only grows, a new row once it changes.

    Attributes:
        rows: in order of their start.
        differences: why each row after the first began.
    """

    def __init__(self, decode: Decode) -> None:
        self.rows: list[Trajectory] = []
        self.differences: list[str] = []
        self._decode = decode
        self._next, self._why = Trajectory(), ""

    def prompt(self, rendered: Sequence[Piece]) -> list[int]:
        """Return the prompt for the engine, given a render of the whole history. Only :meth:`add` keeps it."""
        render, last = Trajectory(), self.rows[-1] if self.rows else Trajectory()
        for tokens, origin in rendered:
            render.append(tokens, origin)
        size = len(last.tokens)
        mismatch = describe("the history", last.tokens, render.tokens[:size], self._decode)
        if mismatch or not self.rows:
            self.branch(render.tokens, mismatch or "the rollout begins")
        else:
            origins, log_probs = last.origins + render.origins[size:], last.log_probs + render.log_probs[size:]
            self._next, self._why = Trajectory(render.tokens, origins, log_probs, list(last.calls)), ""
        return list(self._next.tokens)

    def branch(self, prompt: Sequence[int], why: str) -> None:
        """Let the next call begin a row with this prompt."""
        self._next, self._why = Trajectory(), why
        self._next.append(prompt, Origin.PROMPT)

    def add(self, call: Call) -> None:
        """Keep a call, which continues the last prompt or the last call."""
        self._next.add(call)
        if self._why:
            self.differences += [self._why] if self.rows else []
            self.rows.append(self._next)
            self._why = ""
        self.rows[-1] = self._next  # prompt() has made a longer copy of a row that continues


class EnginePolicy:
    """A policy in vLLM's engine.

    Args:
        engine: only its ``generate`` is called.
        params: of the first turn; ``max_tokens`` limits every turn.
        max_length: of the context, prompt and turn together, in tokens.
        thinking: the delimiter and the budget of each turn; None for no budget.

    Attributes:
        template: the model's.
        tokens: how many it has sampled.
        mismatches: calls in which the engine had other tokens than we gave it, or no log-probs.
    """

    def __init__(
        self,
        template: Template,
        engine: Engine,
        params: "SamplingParams",
        max_length: int,
        thinking: tuple[Delimiter, Budget] | None = None,
    ) -> None:
        self.template, self.history = template, RolloutHistory(template.codec.decode)
        self.mismatches = self.tokens = self._turn = 0
        self._thinking = thinking
        self._budgeted: list[Rollout] = []
        self._engine, self._params, self._max_length = engine, params, max_length

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        """Sample a turn; see :class:`grpo.environments.conversation.Policy`.

        Raises:
            ContextFull: if the history leaves no room for a token, or for the delimiter and an answer.
            EnvironmentFault: for messages that the template cannot render.
        """
        try:
            prompt = self.history.prompt(self.template.render(messages, tools))
        except Exception as error:  # for example an unknown role, or an object that is not a message
            raise EnvironmentFault(f"its messages cannot be rendered ({type(error).__name__}: {error})") from error
        calls, is_cut = await self._sample(prompt)
        message = self.template.parse([*calls[-1].prompt, *calls[-1].tokens][len(prompt) :])
        for call in calls:
            self._keep(call)
        self._turn += 1
        for number, tool_call in enumerate(message.get("tool_calls") or []):
            tool_call["id"] = f"call_{self._turn}_{number}"
        return message, is_cut

    async def _sample(self, prompt: list[int]) -> tuple[list[Call], bool]:
        """Return the calls of a turn, and whether a length limit cut it."""
        if self._thinking is None:
            output = await self._engine.generate(prompt, self._params_of_turn(prompt, least=1))
            call = Call(prompt, list(output.prompt_token_ids or ()))
            call.take(output.outputs[0])
            return [call], output.outputs[0].finish_reason == "length"
        delimiter, budget = self._thinking
        params = self._params_of_turn(prompt, least=len(delimiter.tokens) + 2)
        turn = await budgeted_response(self._engine.llm, prompt, params, delimiter, budget, self._max_length)
        self._budgeted.append(turn)
        return turn.trajectory.calls, turn.is_truncated

    def _params_of_turn(self, prompt: list[int], least: int) -> "SamplingParams":
        room = self._max_length - len(prompt)
        if room < least:
            raise ContextFull
        params = ids_only(self._params)
        params.max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        params.min_tokens = min(params.min_tokens, params.max_tokens)
        params.stop_token_ids = self.template.stop_ids
        params.logprobs = params.logprobs or 0  # only for the sampled token
        if params.seed is not None:
            params.seed += self._turn * SEED_STRIDE
        params.__post_init__()  # derives the tokens that `min_tokens` forbids from the stop tokens
        return params

    def _keep(self, call: Call) -> None:
        if mismatch := describe("the prompt", call.given, call.prompt, self.template.codec.decode):
            self._count(f"{mismatch}; the turn begins a new row with the engine's tokens")
            self.history.branch(call.given, mismatch)
            call.prompt = call.given
        if not all(map(math.isfinite, call.log_probs)):
            self._count("the engine returned a turn without log-probs; it is not trained on")
            call.is_trained = False
        self.history.add(call)
        self.tokens += len(call.tokens)

    def _count(self, mismatch: str) -> None:
        self.mismatches += 1
        logger.error("token mismatch in turn %d: %s", self._turn, mismatch)

    def logs(self) -> dict[str, float]:
        """Return the numbers of its turns for the metrics."""
        thinking = {} if self._thinking is None else merge_turn_logs(self._budgeted)
        return {"token_mismatch": float(self.mismatches), "rollout_tokens": float(self.tokens), **thinking}


async def roll_out(
    make: Callable[[], Environment], policy: EnginePolicy, limits: RolloutLimits, max_rows: int
) -> tuple[Outcome, dict[str, Any]]:
    """Let a policy and an environment talk, and return the trainer's response without prompt and label.

    The response is OpenRLHF's for one row: the last one, which holds the end. ``branches`` has the earlier rows,
    each with its tokens and the engine's account of them. At most `max_rows` are trained on; the earliest are dropped.
    """
    outcome, score = await play(make, policy, limits)
    history = policy.history
    kept = [row for row in history.rows if row.count(Origin.SAMPLED)]
    used = kept[-max_rows:]
    for difference in history.differences:
        logger.debug("a history branched: %s", difference)
    response: dict[str, Any] = {
        "truncated": outcome.ending == "length",
        "reward": score.reward,
        "scores": score.score,
        "extra_logs": {
            **score.logs,  # of the environment's author, so ours come after it
            **outcome.logs(),
            "branches": float(len(history.differences)),
            "branches_dropped": float(len(kept) - len(used)),
            **policy.logs(),
            # Not the sum: a later row repeats what it shares with the earlier ones.
            "environment_tokens": float(max((row.count(Origin.ENVIRONMENT) for row in history.rows), default=0)),
        },
    }
    if not used:
        return outcome, response | _make_empty_response(policy)
    *earlier, last = (row.as_response() | {"engine": row.account()} for row in used)
    return outcome, response | last | {"branches": earlier}


def _make_empty_response(policy: EnginePolicy) -> dict[str, Any]:
    """Return a row without a reward, which :mod:`grpo.train.advantages` removes from the update.

    Until then, one token under its action mask keeps OpenRLHF's means over a row defined.
    """
    return {
        "reward": math.nan,
        "observation_tokens": policy.template.stop_ids[:1] * 2,  # any two: a prompt and a sampled token
        "action_ranges": [(1, 2)],
        "rollout_log_probs": [0.0, 0.0],
        "branches": [],
        "is_empty": True,
    }
