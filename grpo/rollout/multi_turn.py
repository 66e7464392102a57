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
from grpo.environments.environment import ContextFull, Environment, Message, Score
from grpo.environments.settings import RolloutLimits
from grpo.rollout.budgeted_rollout import Rollout, budgeted_response, merge_turn_logs
from grpo.rollout.engine import ids_only
from grpo.rollout.harmony import Piece, Template
from grpo.rollout.invariant import EngineAccount, describe, read_log_probs, validate_log_probs
from grpo.rollout.thinking import Budget, Delimiter
from grpo.rollout.trajectory import Origin, Trajectory
from grpo.stack.upstream.engine import Engine

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
logger = logging.getLogger("openrlhf.grpo.rollout")

SEED_STRIDE = 1_000_003  # rollouts of a prompt have adjacent seeds; those of its turns are far apart


class RolloutHistory:
    """The tokens of one rollout: one row while its history only grows, a new row once it changes.

    Args:
        decode: returns the text of tokens.

    Attributes:
        rows: in order of their start.
        differences: why each row after the first began.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.rows: list[Trajectory] = []
        self.differences: list[str] = []
        self._decode = decode
        self._next = Trajectory()
        self._why: str | None = None

    def prompt(self, rendered: Sequence[Piece]) -> list[int]:
        """Return the prompt for the engine, given a render of the whole history. Only :meth:`add` keeps it."""
        render = Trajectory()
        for tokens, origin in rendered:
            render.append(tokens, origin)
        row = self.rows[-1] if self.rows else Trajectory()
        size = len(row.tokens)
        self._why = describe("the history", row.tokens, render.tokens[:size], self._decode)
        if self._why or not self.rows:
            self._begin_row(render.tokens)
        else:
            self._next = Trajectory(
                list(render.tokens),
                row.origins + render.origins[size:],
                row.log_probs + render.log_probs[size:],
            )
        return list(self._next.tokens)

    def _begin_row(self, prompt: Sequence[int]) -> None:
        self._next = Trajectory()
        self._next.append(prompt, Origin.PROMPT)

    def branch(self, prompt: Sequence[int], why: str) -> None:
        """Let the next turn begin a row with the prompt that the engine really got."""
        self._why = why
        self._begin_row(prompt)

    def add(self, tokens: Sequence[int], log_probs: Sequence[float] | None) -> None:
        """Keep the last prompt, and the tokens that the engine sampled after it. Without log-probs, none is trained."""
        self._next.append(tokens, Origin.FORCED if log_probs is None else Origin.SAMPLED, log_probs)
        if not self.rows or self._why is not None:
            self.differences += [self._why] if self.rows and self._why else []
            self.rows.append(self._next)
            self._why = None  # what is added next belongs to the same row
        self.rows[-1] = self._next

    def add_forced(self, tokens: Sequence[int]) -> None:
        """Insert tokens into the turn that was kept last, such as the end of its thinking."""
        self._next.append(tokens, Origin.FORCED)


class EnginePolicy:
    """A policy in vLLM's engine, and its token accounts.

    Args:
        engine: only its ``generate`` is called.
        params: of the first turn; ``max_tokens`` limits every turn.
        max_length: of the context, prompt and turn together, in tokens.
        thinking: the delimiter and the budget of each turn; None for no budget.

    Attributes:
        template: the model's.
        tokens: how many it has sampled.
        mismatches: turns in which the engine had other tokens than we gave it, or no log-probs.
    """

    def __init__(
        self,
        template: Template,
        engine: Engine,
        params: "SamplingParams",
        max_length: int,
        thinking: tuple[Delimiter, Budget] | None = None,
    ) -> None:
        self.history = RolloutHistory(template.codec.decode)
        self.accounts: list[EngineAccount] = []
        self.mismatches = self.tokens = 0
        self._thinking = thinking
        self._budgeted: list[Rollout] = []
        self._engine, self._params, self._max_length = engine, params, max_length
        self.template, self._turn = template, 0

    async def respond(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[Message, bool]:
        """Sample a turn; see :class:`grpo.environments.conversation.Policy`.

        Raises:
            ContextFull: if the history leaves no room for a token, or for the delimiter and an answer.
            EnvironmentFault: for messages that the template cannot render.
        """
        try:
            prompt = self.history.prompt(self.template.render(messages, tools))
        except Exception as error:  # for example an unknown role, or what is no message
            raise EnvironmentFault(f"its messages cannot be rendered ({type(error).__name__}: {error})") from error
        tokens, is_cut = await (
            self._sample_plain(prompt) if self._thinking is None else self._sample_limited(prompt, *self._thinking)
        )
        self._turn += 1
        message = self.template.parse(tokens)
        for number, call in enumerate(message.get("tool_calls") or []):
            call["id"] = f"call_{self._turn}_{number}"
        return message, is_cut

    async def _sample_plain(self, prompt: list[int]) -> tuple[list[int], bool]:
        """Keep a turn of one call; return its tokens, and whether a length limit cut it."""
        output = await self._engine.generate(prompt, self._params_of_turn(prompt, least=1))
        sampled = output.outputs[0]
        tokens = list(sampled.token_ids)
        self._keep(prompt, list(output.prompt_token_ids or ()), tokens, read_log_probs(sampled))
        return tokens, sampled.finish_reason == "length"

    async def _sample_limited(self, prompt: list[int], delimiter: Delimiter, budget: Budget) -> tuple[list[int], bool]:
        """Keep a turn with a thinking budget, of one or two calls; return as :meth:`_sample_plain`."""
        params = self._params_of_turn(prompt, least=len(delimiter.tokens) + 2)
        turn = await budgeted_response(self._engine.llm, prompt, params, delimiter, budget, self._max_length)
        made = zip(turn.trajectory.tokens, turn.trajectory.origins, strict=True)
        forced = [token for token, origin in made if origin is Origin.FORCED]
        asked = prompt
        for number, part in enumerate(turn.parts):
            if forced and number == len(turn.parts) - 1:  # the answer
                asked = [*asked, *forced]
                self.history.add_forced(forced)
            self._keep(asked, part.given, part.tokens, validate_log_probs(part.log_probs))
            asked = [*asked, *part.tokens]
        self._budgeted.append(turn)
        return turn.response, turn.is_truncated

    def logs(self) -> dict[str, float]:
        """Return the numbers of its turns for the metrics."""
        thinking = {} if self._thinking is None else merge_turn_logs(self._budgeted)
        return {"token_mismatch": float(self.mismatches), "rollout_tokens": float(self.tokens), **thinking}

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

    def _keep(self, prompt: list[int], given: list[int], tokens: list[int], log_probs: list[float] | None) -> None:
        if mismatch := describe("the prompt", given, prompt, self.template.codec.decode):
            self._count(f"{mismatch}; the turn begins a new row with the engine's tokens")
            self.history.branch(given, mismatch)
        if log_probs is None:
            self._count("the engine returned a turn without log-probs; it is not trained on")
        self.history.add(tokens, log_probs)
        self.tokens += len(tokens)
        while len(self.accounts) < len(self.history.rows):
            self.accounts.append(EngineAccount())
        self.accounts[-1].note(given, tokens, log_probs)

    def _count(self, mismatch: str) -> None:
        self.mismatches += 1
        logger.error("token mismatch in turn %d: %s", self._turn, mismatch)


async def roll_out(
    make: Callable[[], Environment], policy: EnginePolicy, limits: RolloutLimits, max_rows: int
) -> tuple[Outcome, dict[str, Any]]:
    """Let a policy and an environment talk, and return the trainer's response without prompt and label.

    The response is OpenRLHF's for one row: the last one, which holds the end. ``branches`` has the earlier rows,
    each with ``observation_tokens``, ``action_ranges``, ``rollout_log_probs`` and ``engine``. At most `max_rows` are
    trained on; the earliest are dropped.
    """
    outcome, score = await play(make, policy, limits)
    kept = [
        (row, account)
        for row, account in zip(policy.history.rows, policy.accounts, strict=True)
        if row.count(Origin.SAMPLED)
    ]
    for difference in policy.history.differences:
        logger.debug("a history branched: %s", difference)
    used = kept[-max_rows:]
    from_environment = (row.count(Origin.ENVIRONMENT) for row in policy.history.rows)
    response: dict[str, Any] = {
        "truncated": outcome.ending == "length",
        "reward": score.reward,
        "scores": score.score,
        "extra_logs": {
            **outcome.logs(),
            "branches": float(len(policy.history.differences)),
            "branches_dropped": float(len(kept) - len(used)),
            **policy.logs(),
            "environment_tokens": float(max(from_environment, default=0)),
            **score.logs,
        },
    }
    if not used:
        return outcome, response | _make_empty_response(policy, score)
    *earlier, last = (row.as_response() | {"engine": account.as_dict()} for row, account in used)
    return outcome, response | last | {"branches": earlier}


def _make_empty_response(policy: EnginePolicy, score: Score) -> dict[str, Any]:
    """Return a row without a reward, which :func:`grpo.train.advantages.give` removes from the update.

    Until then, one token under its action mask keeps OpenRLHF's means over a row defined.
    """
    tokens = policy.template.stop_ids[:1] * 2
    return {
        "reward": math.nan,
        "scores": score.score,
        "observation_tokens": tokens,
        "action_ranges": [(len(tokens) - 1, len(tokens))],
        "rollout_log_probs": [0.0] * len(tokens),
        "branches": [],
        "is_empty": True,
    }
