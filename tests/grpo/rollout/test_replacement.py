"""An engine that dies is started again, gets the adapter, and samples its lost prompts with their seeds."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, ActorUnavailableError
from vllm.v1.engine.exceptions import EngineDeadError

from grpo.lora.adapter import Receipt
from grpo.lora.engine_actor import NoPolicyError, SyncError
from grpo.lora.sync import Sent
from grpo.rollout import replacement
from grpo.rollout.replacement import EngineCalls

EXPECTED = Receipt(tensors=1, split=1, whole=0)
DEATHS = {"actor": ActorUnavailableError("gone", None), "core": EngineDeadError(), "idle": NoPolicyError("new")}


class Reference:
    """What a call returns, or raises."""

    def __init__(self, engine: "Engine | None", value: Any) -> None:
        self.engine, self.value = engine, value


class Engine:
    """An engine that dies as it is told, and is started again by Ray, at first without an adapter."""

    def __init__(self, number: int) -> None:
        self._actor_id = SimpleNamespace(hex=lambda: f"{number}")
        self.adapter: Any = "initial"
        self.policies: list[int] = []
        self.asked = 0  # whether it has started
        self.confirms = 1
        self.generate_responses = SimpleNamespace(remote=self._generate)
        self.has_policy = SimpleNamespace(remote=self._has_policy)
        self.load_adapter = SimpleNamespace(remote=self._load)
        self.go_on = SimpleNamespace(remote=lambda policy, *_: self.policies.append(policy))
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: Reference(self, 0))

    def _generate(self, **call: Any) -> Reference:
        return Reference(self, (call["prompt"], call["seed"], self.adapter))

    def _has_policy(self) -> Any:
        self.asked += 1
        return DEATHS["actor"] if self.asked % 3 else self.adapter is not None

    def _load(self, buffer: Any, fields: Any) -> Any:
        self.adapter = buffer or "base"
        return Reference(None, [{"rank": 0, "workers": 1, "tensors": 1, "checksum": self.confirms}])


def make_calls(*engines: Engine) -> EngineCalls:
    return EngineCalls(engines, None)


class Ray:
    """Ray with engines of which some die."""

    def __init__(self) -> None:
        self.lost: dict[Reference, Exception] = {}
        self.killed: list[tuple[int, int, str]] = []

    def wait(self, references: list, **_: Any) -> tuple[list, list]:
        return references[:1], references[1:]

    def get(self, reference: Any) -> Any:
        if isinstance(reference, list):
            return [self.get(one) for one in reference]
        if reference in self.lost:
            raise self.lost[reference]
        if isinstance(reference, Exception):
            raise reference
        return reference.value if isinstance(reference, Reference) else reference

    def die(self, engine: Engine, references: list[Reference], error: Exception) -> None:
        engine.adapter, engine.asked = None, 0
        self.lost |= {reference: error for reference in references if reference.engine is engine}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    mine = Ray()
    monkeypatch.setattr(replacement, "ray", mine)
    monkeypatch.setattr(replacement, "_LOOK_SECONDS", 0.0)
    return mine


def sample_prompts(
    ray: Ray, deaths: list[tuple[int, int, str]], adapter: Any, prompts: int = 6
) -> tuple[set, EngineCalls]:
    """Sample prompts with two engines; the engine `which` dies before the response number `at`."""
    engines, calls = [Engine(0), Engine(1)], make_calls()
    calls.adapter = adapter
    pending = [calls.send(engines[n % 2], {"prompt": n, "seed": 100 + n}) for n in range(prompts)]
    answers: list = []
    while pending:
        for at, which, how in deaths:
            if at == len(answers) and (at, which, how) not in ray.killed:
                ray.die(engines[which], pending, DEATHS[how])
                ray.killed.append((at, which, how))
        ready, again = calls.wait(pending)
        answers += [ray.get(reference)[:2] for reference in ready]
        pending = [again.get(reference, reference) for reference in pending if reference not in ready]
    assert len(answers) == prompts, "a prompt was answered twice"
    assert not calls._calls
    return set(answers), calls


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.sampled_from(sorted(DEATHS))), max_size=3, unique=True),
    st.booleans(),
)
def test_every_prompt_is_answered_once_with_its_seed(ray: Ray, deaths: list, is_synced: bool) -> None:
    ray.lost, ray.killed = {}, []
    adapter = Sent("adapter", [], EXPECTED, 0) if is_synced else None
    answers, calls = sample_prompts(ray, deaths, adapter)
    assert answers == {(n, 100 + n) for n in range(6)}
    assert calls.replaced <= len(deaths)


@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.parametrize("is_synced", [False, True])
def test_it_holds_the_policy_before_it_samples(ray: Ray, how: str, is_synced: bool) -> None:
    engine, calls, notes = Engine(0), make_calls(), []
    calls.note, calls.policy = notes.append, 7
    told: list = []
    calls.lost = lambda one: told.append((one, "lost", one.asked))
    calls.back = lambda one: told.append((one, "back", one.adapter))
    calls.adapter = Sent("adapter", [], EXPECTED, 0) if is_synced else None
    sent = [calls.send(engine, {"prompt": n, "seed": n}) for n in range(3)]
    ray.die(engine, sent, DEATHS[how])
    ready, again = calls.wait(sent)
    assert ready == [] and set(again) == set(sent)
    policy = "adapter" if is_synced else "base"
    assert [ray.get(reference) for reference in again.values()] == [(n, n, policy) for n in range(3)]
    assert engine.policies == [7]
    assert told == [(engine, "lost", 0), (engine, "back", None)], "before it starts, and before it has the policy"
    [note] = notes
    assert note["prompts"] == 3 and note["engine"] == "0" and calls.replaced_since() == 1 == calls.replaced
    assert calls.replaced_since() == 0


def test_an_engine_that_was_only_out_of_reach_keeps_its_adapter(ray: Ray) -> None:
    engine, calls = Engine(0), make_calls()
    sent = calls.send(engine, {"prompt": 1, "seed": 1})
    ray.lost[sent] = DEATHS["actor"]
    _, again = calls.wait([sent])
    assert ray.get(again[sent]) == (1, 1, "initial") and calls.replaced == 0


def test_an_engine_that_is_dead_when_prompts_are_drawn_is_replaced(ray: Ray) -> None:
    engines = [Engine(0), Engine(1)]
    calls = make_calls(*engines)
    asked = Reference(engines[0], 0)
    engines[0].get_num_unfinished_requests = SimpleNamespace(remote=lambda: asked)
    ray.die(engines[0], [asked], DEATHS["actor"])
    assert calls.loads() == [0, 0]
    assert engines[0].adapter == "base" and calls.replaced == 1


@pytest.mark.parametrize("is_back", [False, True])
def test_an_engine_that_dies_while_nobody_asks_it_is_replaced_before_the_sync(ray: Ray, is_back: bool) -> None:
    """Also if it has started again meanwhile: the actor still maps the base of the one that died."""
    engines, told = [Engine(0), Engine(1)], []
    calls = make_calls(*engines)
    calls.lost = lambda one: told.append((one, "lost"))
    calls.back = lambda one: told.append((one, "back"))
    engines[1].adapter = None
    for engine, asked in zip(engines, (2, 2 if is_back else 0), strict=True):
        engine.asked = asked  # every third answer is not an error
    sent = Sent("newer", [], EXPECTED, 0)
    calls.sync(lambda: told.append("sync") or sent)
    assert told == [(engines[1], "lost"), (engines[1], "back"), "sync"]
    assert calls.replaced == 1 and engines[1].adapter == "base" and calls.adapter is sent


def test_after_too_many_deaths_the_last_one_ends_the_run(ray: Ray) -> None:
    engine, calls = Engine(0), make_calls()
    calls.replaced = replacement.MOST
    sent = calls.send(engine, {"prompt": 1, "seed": 1})
    ray.die(engine, [sent], DEATHS["actor"])
    with pytest.raises(ActorUnavailableError):
        calls.wait([sent])


def test_an_engine_that_does_not_start_ends_the_run(ray: Ray) -> None:
    engine, calls = Engine(0), make_calls()
    sent = calls.send(engine, {"prompt": 1, "seed": 1})
    ray.die(engine, [sent], DEATHS["actor"])
    engine.has_policy = SimpleNamespace(remote=ActorDiedError)
    with pytest.raises(ActorDiedError):
        calls.wait([sent])


def test_an_engine_on_a_lost_node_ends_the_run(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, calls = Engine(0), make_calls()
    sent = calls.send(engine, {"prompt": 1, "seed": 1})
    ray.die(engine, [sent], DEATHS["actor"])
    engine.has_policy = SimpleNamespace(remote=lambda: DEATHS["actor"])  # Ray waits for the node without limit
    monkeypatch.setattr(replacement.cluster, "lost_nodes", lambda: ["10.0.0.2"])
    with pytest.raises(ActorUnavailableError):
        calls.wait([sent])


def test_an_adapter_that_does_not_arrive_whole_ends_the_run(ray: Ray) -> None:
    engine, calls = Engine(0), make_calls()
    engine.confirms = 2
    calls.adapter = Sent("adapter", [], EXPECTED, 0)
    sent = calls.send(engine, {"prompt": 1, "seed": 1})
    ray.die(engine, [sent], DEATHS["actor"])
    with pytest.raises(SyncError):
        calls.wait([sent])


def test_another_error_is_left_to_the_loop(ray: Ray) -> None:
    calls = make_calls()
    sent = calls.send(Engine(0), {"prompt": 1, "seed": 1})
    ray.lost[sent] = ValueError("of the reward")
    assert calls.wait([sent]) == ([sent], {})


class Rewards(Ray):
    """Ray whose answers are not there yet, while their rewards are missing."""

    def __init__(self) -> None:
        super().__init__()
        self.missing = True

    def wait(self, references: list, timeout: float = 0, **_: Any) -> tuple[list, list]:
        lost = [reference for reference in references if reference in self.lost]
        return ([], references) if self.missing and not lost else super().wait(lost or references)


def make_prompt(seed: int) -> dict[str, Any]:
    return {"prompt": 1, "seed": seed, "sampling_params": SimpleNamespace(seed=seed)}


def test_prompts_are_sampled_once_their_engines_say_so_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, engines, sampled = Rewards(), [Engine(0), Engine(1)], threading.Event()
    calls = make_calls(*engines)
    monkeypatch.setattr(replacement, "ray", ray)
    known: list[list[int]] = [[], []]
    for number, engine in enumerate(engines):
        engine.sampled = SimpleNamespace(remote=lambda number=number: known[number])
    sent = [calls.send(engines[seed % 2], make_prompt(seed)) for seed in (2, 3, 4)]
    for now, is_sampled in (([2, 4], False), ([2], False), ([2, 4, 6], True)):
        known[0], known[1] = now, [3] if now != [2, 4] else []
        assert calls.wait(sent, sampled) == ([], {})
        assert sampled.is_set() == is_sampled


def test_prompts_that_a_dead_engine_lost_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, engine, sampled = Rewards(), Engine(0), threading.Event()
    calls = make_calls(engine)
    monkeypatch.setattr(replacement, "ray", ray)
    monkeypatch.setattr(replacement, "_LOOK_SECONDS", 0.0)
    known = [2]
    engine.sampled = SimpleNamespace(remote=lambda: known)
    sent = calls.send(engine, make_prompt(2))
    calls.wait([sent], sampled)
    assert sampled.is_set()
    ray.die(engine, [sent], DEATHS["actor"])
    calls.phase = lambda: pytest.MonkeyPatch.context() if not sampled.is_set() else pytest.fail("the sync might come")
    known.clear()
    _, again = calls.wait([sent], sampled)
    assert calls.wait([again[sent]], sampled) == ([], {}) and not sampled.is_set()
    known.append(2)
    calls.wait([again[sent]], sampled)
    assert sampled.is_set()


def test_an_engine_that_cannot_be_asked_has_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, engine, sampled = Rewards(), Engine(0), threading.Event()
    calls = make_calls(engine)
    monkeypatch.setattr(replacement, "ray", ray)
    engine.sampled = SimpleNamespace(remote=lambda: DEATHS["actor"])
    assert calls.wait([calls.send(engine, make_prompt(2))], sampled) == ([], {}) and not sampled.is_set()


def test_two_batches_replace_an_engine_once(ray: Ray) -> None:
    engine, calls = Engine(0), make_calls()
    sent = [calls.send(engine, {"prompt": n, "seed": n}) for n in range(2)]
    ray.die(engine, sent, DEATHS["actor"])
    engine.load_adapter = SimpleNamespace(remote=lambda *sent: time.sleep(0.2) or engine._load(*sent))
    both = [threading.Thread(target=calls.wait, args=([reference],)) for reference in sent]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(60)
    assert calls.replaced == 1 and engine.adapter == "base"


@pytest.mark.parametrize("is_replaced_first", [True, False])
def test_a_sync_and_a_replacement_leave_the_adapter_of_the_sync(ray: Ray, is_replaced_first: bool) -> None:
    """A replacement that begins during a sync must not install the adapter before it, nor end after it."""
    engine, calls, may_end = Engine(0), make_calls(), threading.Event()
    calls.adapter = Sent("older", [], EXPECTED, 0)
    lost = calls.send(engine, {"prompt": 1, "seed": 1})
    ray.die(engine, [lost], DEATHS["actor"])
    begun = threading.Event()

    def load_slowly(*sent: Any) -> Any:
        begun.set()
        assert may_end.wait(60)
        return engine._load(*sent)

    def send() -> Sent:
        (engine._load if is_replaced_first else load_slowly)("newer", [])
        return Sent("newer", [], EXPECTED, 0)

    sync = threading.Thread(target=calls.sync, args=(send,))
    replace = threading.Thread(target=calls.wait, args=([lost],))
    if is_replaced_first:
        engine.load_adapter = SimpleNamespace(remote=load_slowly)
    first, second = (replace, sync) if is_replaced_first else (sync, replace)
    first.start()
    assert begun.wait(60)
    second.start()
    second.join(0.2)
    assert second.is_alive(), "it waits for the other"
    may_end.set()
    for thread in (first, second):
        thread.join(60)
    assert engine.adapter == "newer" and calls.adapter.buffer == "newer"
