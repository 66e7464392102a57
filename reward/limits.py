"""Who may call a model now: limits and one circuit breaker for each model, for all processes of a run.

A call takes a slot before it is sent, says when it was sent, and gives the slot back after; a window of the quota is
counted from the sending. A call gets no slot while

- as many calls are under way as the model may have at once;
- the last window already holds as many requests or tokens as the quota has;
- the server has asked for a pause (429), which every process keeps;
- the breaker is open: after `FAILURES_TO_OPEN` failures in a row no calls are made for a while, then exactly one, the
  probe. Its success closes the breaker; its failure doubles the pause. A spent quota also opens the breaker: a 429 says
  so, or all replies of a whole window are 429s.

A quota below the configured one shows in a 429. The cap on requests then falls to the number that the server accepted
in the last window. Somebody else may have used the quota, so it never falls below a quarter at once. It grows by a
twentieth after `WINDOWS_TO_GROW` windows without a 429, by two after as many again, and so on.
A process that dies keeps its slots until `call_timeout` is over.
"""

import functools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Concatenate, ParamSpec

from reward.settings import ChainSettings
from reward.shared_state import SharedState

logger = logging.getLogger(__name__)

FAILURES_TO_OPEN = 5
WINDOWS_TO_GROW = 5
# Shares of a window. The slack is for calls that reach the server late, and with them leave its window late.
SLACK, FIRST_OPEN, LONGEST_OPEN, SHUT, PAUSE = 0.03, 1 / 12, 1.0, 5.0, 1 / 6
_POLL_SECONDS = 0.05
# Values of `running`; 0 is done.
NOT_SENT, SENT = 1, 2
_LOOK_AGAIN_SECONDS = 0.5


class CallOutcome(Enum):
    """The outcome of a call, as evidence about its model."""

    ANSWERED = "answered"  # whatever the answer is worth
    THROTTLED = "throttled"  # 429
    SPENT = "spent"  # 429, and a pause does not help: the breaker opens
    FAILED = "failed"  # 5xx, no connection, no answer in time: the breaker counts it
    CUT = "cut"  # the deadline came before the call's own limit: no evidence
    REFUSED = "refused"  # no such model, or no rights: no call for `SHUT` windows
    ALL_REFUSED = "all refused"  # the same, for all models: no valid key, or no server at the address


_P = ParamSpec("_P")


def _forgiving(note: Callable[Concatenate["Limits", _P], None]) -> Callable[Concatenate["Limits", _P], None]:
    """Log an error of the file. It costs no call: a slot that is not given back is free after its lease."""

    @functools.wraps(note)
    def take_note(limits: "Limits", *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            note(limits, *args, **kwargs)
        except sqlite3.Error as error:
            logger.warning("the limits could not take note of a call: %s", error)

    return take_note


@dataclass(frozen=True)
class Slot:
    """The right to make one call."""

    id: int
    model: str
    is_probe: bool


@dataclass(frozen=True)
class NoSlot:
    """Why a call gets no slot. `until`: when to look again (monotonic clock); `is_shut`: not worth waiting for."""

    why: str
    until: float
    is_open: bool = False
    is_shut: bool = False


class Limits:
    """The limits of `settings`, for each model, among all processes that share `state`."""

    def __init__(self, state: SharedState, settings: ChainSettings) -> None:
        self.state, self._settings = state, settings
        # Only one thread of a process looks for a slot; the others queue here and not in the file.
        self._turns = {model: threading.Lock() for model in settings.models}

    def take(self, model: str, tokens: int, give_up: float) -> Slot | NoSlot:
        """Wait for a slot until `give_up` (monotonic clock); an open breaker is not waited for.

        Args:
            tokens: an estimate of the prompt's; :meth:`give_back` corrects it.
        """
        if not self._turns[model].acquire(timeout=max(0.0, give_up - time.monotonic())):
            return NoSlot("too many samples wait", max(give_up, time.monotonic()))
        try:
            while True:
                with self.state.transaction() as connection:
                    slot = self._look(connection, model, tokens)
                if isinstance(slot, Slot) or slot.is_open or slot.until > give_up:
                    return slot
                time.sleep(max(0.001, min(slot.until - time.monotonic(), _LOOK_AGAIN_SECONDS)))
        finally:
            self._turns[model].release()

    def _look(self, connection: sqlite3.Connection, model: str, tokens: int) -> Slot | NoSlot:
        now, settings = time.monotonic(), self._settings
        connection.execute("INSERT OR IGNORE INTO models (model) VALUES (?)", (model,))
        state = connection.execute("SELECT * FROM models WHERE model = ?", (model,)).fetchone()
        if state["open_until"] > now:
            return NoSlot("its breaker is open", state["open_until"], is_open=True, is_shut=bool(state["is_shut"]))
        is_probe = state["open_until"] > 0
        if is_probe and state["probe_until"] > now:
            return NoSlot("its breaker waits for a probe", now + _POLL_SECONDS, True, bool(state["is_shut"]))
        refusal: NoSlot | None = NoSlot("the server asked for a pause", state["paused_until"])
        if state["paused_until"] <= now:
            refusal = self._busy(connection, model, tokens, self._grown_cap(connection, state, now), now)
        if refusal:
            return replace(refusal, is_open=is_probe, is_shut=bool(state["is_shut"]))  # nobody waits to send a probe
        lease = now + settings.call_timeout + _LOOK_AGAIN_SECONDS
        if is_probe:
            connection.execute("UPDATE models SET probe_until = ? WHERE model = ?", (lease, model))
        cursor = connection.execute(
            "INSERT INTO calls (model, started, expires, tokens, running) VALUES (?, ?, ?, ?, ?)",
            (model, now, lease, tokens, NOT_SENT),
        )
        return Slot(cursor.lastrowid or 0, model, is_probe)

    def _busy(self, connection: sqlite3.Connection, model: str, tokens: int, cap: int, now: float) -> NoSlot | None:
        """Say which limit leaves no slot, and when it will; forget calls that no limit counts any more."""
        window = self._settings.window * (1 + SLACK)
        connection.execute("UPDATE calls SET running = 0 WHERE model = ? AND expires < ?", (model, now))
        connection.execute("DELETE FROM calls WHERE model = ? AND running = 0 AND started <= ?", (model, now - window))
        calls = connection.execute("SELECT * FROM calls WHERE model = ? ORDER BY started", (model,)).fetchall()
        if sum(call["running"] > 0 for call in calls) >= self._settings.concurrency:
            return NoSlot("too many calls are under way", now + _POLL_SECONDS)
        recent = [call for call in calls if call["started"] > now - window or call["running"] == NOT_SENT]
        if len(recent) >= cap:
            until = recent[len(recent) - cap]["started"] + window
            return NoSlot("the requests of this window are used up", max(until, now + _POLL_SECONDS))
        excess = sum(call["tokens"] for call in recent) + tokens - self._settings.tokens_per_window
        until = None
        for call in recent:  # a prompt above the limit is sent alone
            if excess <= 0:
                break
            excess, until = excess - call["tokens"], call["started"] + window
        if until is None:
            return None
        return NoSlot("the tokens of this window are used up", max(until, now + _POLL_SECONDS))

    def _grown_cap(self, connection: sqlite3.Connection, state: sqlite3.Row, now: float) -> int:
        limit, cap = self._settings.requests_per_window, state["cap"]
        if cap is None:
            return limit
        if now - state["cap_since"] > WINDOWS_TO_GROW * self._settings.window:
            cap += max(1, cap // 20) * 2 ** state["growths"]
            connection.execute(
                "UPDATE models SET cap = ?, cap_since = ?, growths = growths + 1 WHERE model = ?",
                (cap if cap < limit else None, now, state["model"]),
            )
        return min(cap, limit)

    @_forgiving
    def mark_sent(self, slot: Slot) -> None:
        """Take note that a call has just gone to the server."""
        with self.state.transaction() as connection:
            connection.execute(
                "UPDATE calls SET running = ?, started = ? WHERE id = ? AND running = ?",
                (SENT, time.monotonic(), slot.id, NOT_SENT),
            )

    @_forgiving
    def give_back(
        self,
        slot: Slot,
        outcome: CallOutcome,
        *,
        why: str = "",
        tokens: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Take note of how a call went.

        Args:
            why: the call's error, for the log.
            tokens: of the prompt, as the server counted them.
            retry_after: seconds that the server asks to wait.
        """
        now = time.monotonic()
        with self.state.transaction() as connection:
            connection.execute(
                "UPDATE calls SET started = iif(running = ?, ?, started), running = 0, tokens = coalesce(?, tokens) "
                "WHERE id = ?",
                (NOT_SENT, now, tokens, slot.id),
            )
            if outcome in (CallOutcome.THROTTLED, CallOutcome.SPENT):
                connection.execute("DELETE FROM calls WHERE id = ?", (slot.id,))  # it used nothing of the quota
                if outcome is CallOutcome.THROTTLED and self._is_spent(connection, slot.model, now):
                    outcome = CallOutcome.SPENT
            if outcome in (CallOutcome.ANSWERED, CallOutcome.THROTTLED):
                connection.execute(
                    "UPDATE models SET failures = 0, openings = 0, open_until = 0, probe_until = 0, is_shut = 0, "
                    "refused_since = iif(?, 0, refused_since) WHERE model = ?",
                    (outcome is CallOutcome.ANSWERED, slot.model),
                )
            if outcome is CallOutcome.THROTTLED:
                self._pause(connection, slot, now, retry_after)
            elif outcome is CallOutcome.SPENT:
                self._open(connection, slot, now, why, retry_after or 0.0)
            elif outcome is CallOutcome.FAILED:
                self._count_failure(connection, slot, now, why)
            elif outcome is CallOutcome.CUT and slot.is_probe:
                connection.execute("UPDATE models SET probe_until = 0 WHERE model = ?", (slot.model,))
            elif outcome is CallOutcome.REFUSED:
                self._shut(connection, [slot.model], now, why)
            elif outcome is CallOutcome.ALL_REFUSED:
                self._shut(connection, self._settings.models, now, why)

    def _is_spent(self, connection: sqlite3.Connection, model: str, now: float) -> bool:
        """Say whether this 429 ends a window in which every reply was a 429 and no call is under way."""
        connection.execute(
            "UPDATE models SET refused_since = iif(refused_since, refused_since, ?) WHERE model = ?", (now, model)
        )
        since = connection.execute("SELECT refused_since FROM models WHERE model = ?", (model,)).fetchone()[0]
        query = "SELECT 1 FROM calls WHERE model = ? AND running > 0"
        return now - since >= self._settings.window and connection.execute(query, (model,)).fetchone() is None

    def _pause(self, connection: sqlite3.Connection, slot: Slot, now: float, retry_after: float | None) -> None:
        window = self._settings.window
        pause = PAUSE * window if retry_after is None else retry_after
        accepted = connection.execute(
            "SELECT count(*) AS n FROM calls WHERE model = ? AND (started > ? OR running = ?)",
            (slot.model, now - window, NOT_SENT),
        ).fetchone()["n"]
        state = connection.execute("SELECT * FROM models WHERE model = ?", (slot.model,)).fetchone()
        cap = state["cap"] or self._settings.requests_per_window
        # A burst of 429s is one sign.
        floor = cap // 4 if now - state["cap_since"] > window / 2 else state["cap_floor"]
        connection.execute(
            "UPDATE models SET paused_until = max(paused_until, ?), cap = ?, cap_floor = ?, cap_since = ?, growths = 0 "
            "WHERE model = ?",
            (now + pause + SLACK * window, max(1, floor, min(cap, accepted)), floor, now, slot.model),
        )

    def _shut(self, connection: sqlite3.Connection, models: Sequence[str], now: float, why: str) -> None:
        was_shut = True
        for model in models:
            connection.execute("INSERT OR IGNORE INTO models (model) VALUES (?)", (model,))
            state = connection.execute("SELECT is_shut FROM models WHERE model = ?", (model,)).fetchone()
            was_shut = was_shut and bool(state["is_shut"])
            connection.execute(
                "UPDATE models SET open_until = ?, probe_until = 0, is_shut = 1 WHERE model = ?",
                (now + SHUT * self._settings.window, model),
            )
        if not was_shut:  # once among all processes
            logger.error("models that cannot be used are left out: %s: %s", ", ".join(models), why)

    def _count_failure(self, connection: sqlite3.Connection, slot: Slot, now: float, why: str) -> None:
        state = connection.execute("SELECT * FROM models WHERE model = ?", (slot.model,)).fetchone()
        if state["open_until"] and not slot.is_probe:
            return  # it was on its way when the breaker opened
        connection.execute("UPDATE models SET failures = failures + 1 WHERE model = ?", (slot.model,))
        if slot.is_probe or state["failures"] + 1 >= FAILURES_TO_OPEN:
            self._open(connection, slot, now, why)

    def _open(self, connection: sqlite3.Connection, slot: Slot, now: float, why: str, at_least: float = 0.0) -> None:
        """Open the breaker, each time for longer, until a probe is answered."""
        state = connection.execute("SELECT * FROM models WHERE model = ?", (slot.model,)).fetchone()
        if state["open_until"] and not slot.is_probe:
            return  # it was on its way when the breaker opened
        window = self._settings.window
        seconds = max(at_least, min(LONGEST_OPEN * window, FIRST_OPEN * window * 2 ** min(10, state["openings"])))
        connection.execute(
            "UPDATE models SET openings = openings + 1, open_until = ?, probe_until = 0 WHERE model = ?",
            (now + seconds, slot.model),
        )
        logger.warning("%s fails and gets one call after %.3g s: %s", slot.model, seconds, why)
