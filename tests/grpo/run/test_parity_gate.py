"""When the gate compares, on what, and what it does with the result. Log-probs of real engines: tests/stack."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import ray
import torch

from grpo.rollout.rows import Batch
from grpo.run import parity_gate
from grpo.run.parity_gate import ParityGate
from grpo.run.progress import PolicyMismatch
from grpo.train.trainer import Trainer

ROWS, LENGTH, ENGINES = 16, 21, ("aa", "bb")


class Group:
    """Ranks whose passes return the log-probs in the sequences, as the policy and as its base.

    A routing that is replayed adds its numbers.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks, self.adapter, self.calls = ranks, 0.0, []

    def async_run_method_batch(self, method_name, sequences, action_mask, attention_mask, routing=None):
        assert len(sequences) % self.ranks == 0
        self.calls.append(method_name)
        base = [-(batch[:, 1:] % 7) / 2 for batch in sequences]
        if routing:
            base = [of_batch + torch.stack(rows)[:, None] for of_batch, rows in zip(base, routing, strict=True)]
        moved = self.adapter * (method_name == "forward")
        return [[values + moved * (values + 2) for values in base]]


class Gate(ParityGate):
    """The gate of a run with two engines.

    Attributes:
        written: the lines of parity.jsonl.
    """

    def __init__(self, ranks=2, **flags) -> None:
        values = {"parity_limit": 0.05, "top_p": 1.0, "actor_num_nodes": 1, "actor_num_gpus_per_node": ranks}
        self.args = SimpleNamespace(**values | {"routing_replay": False} | flags)
        self.group, self.written = Group(ranks), []
        engines = [SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda name=name: name)) for name in ENGINES]
        super().__init__(self.args, self.group, engines)
        self.log = SimpleNamespace(write_parity=self.written.append, phase=lambda _: nullcontext())

    def compare(self, step, batches, samples) -> None:
        self.check(self.log, step, batches, samples)


def make_step(gate, step=1, adapter=0.0, shift=0.0, batches=4, rows=ROWS, lacks_adapter=False):
    """Micro-batches and samples of a step; engine "bb" is off by `shift`, and may lack the adapter."""
    gate.group.adapter = adapter
    generator, made, samples = torch.Generator().manual_seed(step), [], []
    for _ in range(batches):
        sequences = torch.randint(100, (rows, LENGTH), generator=generator)
        index = list(range(len(samples), len(samples) + rows))
        samples += [SimpleNamespace(sampled_by=ENGINES[number % 2], prompts=[f"{step} {number}"]) for number in index]
        base = -(sequences[:, 1:] % 7) / 2
        is_second = torch.tensor([number % 2 for number in index])[:, None]
        off, moved = shift * is_second, adapter * (1 - is_second * lacks_adapter)
        mask = torch.ones(rows, LENGTH - 1, dtype=torch.long)
        made.append(
            Batch(
                sequences=sequences,
                action_mask=mask,
                attention_mask=torch.ones_like(sequences),
                rollout_log_probs=base + moved * (base + 2) + off,
                index=index,
                info={},
                prompts=index,
                labels=index,
                rewards=torch.zeros(rows),
                scores=torch.zeros(rows),
            )
        )
    return made, samples


@pytest.fixture(autouse=True)
def stub_ray(monkeypatch):
    monkeypatch.setattr(ray, "get", lambda references: references)


def test_it_compares_until_the_adapter_has_an_effect():
    gate = Gate()
    for step, adapter in enumerate((0.0, 0.0, 0.1, 0.1), start=1):
        gate.compare(step, *make_step(gate, adapter=adapter))
    assert [row["step"] for row in gate.written] == [1, 2, 3]


def list_waits(gate, step, **options):
    """What a step of few rollouts writes: three prompts for each engine."""
    gate.written.clear()
    gate.compare(step, *make_step(gate, step, batches=1, rows=6, **options))
    return [(row["since"], row["rows"][0]["tokens"] // (6 * (LENGTH - 1)), row["waits"]) for row in gate.written]


def test_steps_of_few_rollouts_are_compared_together_until_each_engine_is_judged():
    gate = Gate(ranks=1)
    waits = "too few tokens to judge engine 0, engine 1: the next step, if any, is compared too"
    assert list_waits(gate, 1) == [(1, 1, "")], "without an adapter, the gate stays closed anyway"
    for step in range(2, 6):
        assert list_waits(gate, step, adapter=0.1) == [(2, step - 1, waits)]
    assert list_waits(gate, 6, adapter=0.1) == [(2, 5, "")] and list_waits(gate, 7, adapter=0.1) == []


def test_an_engine_that_hardly_samples_does_not_keep_the_gate_closed(monkeypatch):
    monkeypatch.setattr(parity_gate, "MOST", 3)
    gate = Gate(ranks=1)
    said = [waits for step in (1, 2, 3, 4) for _, _, waits in list_waits(gate, step, adapter=0.1)]
    assert said[1:] == [f"too few tokens to judge engine 0, engine 1: {then}" for then in (
        "the next step, if any, is compared too", "no other step is compared after 3"
    )]  # fmt: skip


def test_an_engine_of_few_tokens_that_lacks_the_adapter_is_found():
    """No step by itself shows it, so it cannot show either whether it is the routing."""
    gate, steps = Gate(ranks=1), []
    for step in (1, 2):
        batches, samples = make_step(gate, step, batches=1, rows=6, adapter=0.03, lacks_adapter=True)
        for sample in samples:
            sample.engine_routing = torch.tensor(0.0)
        steps.append((step, batches, samples))
        alone = Gate(ranks=1)
        alone.group.adapter = 0.03
        alone.compare(*steps[-1])
    gate.compare(*steps[0])
    with pytest.raises(PolicyMismatch, match=r"engine 1: .*adapter"):
        gate.compare(*steps[1])


def test_a_difference_stops_the_run_and_is_written():
    gate = Gate()
    batches, samples = make_step(gate, shift=0.2)
    with pytest.raises(PolicyMismatch, match=r"engine 1: .*0\.2000"):
        gate.compare(1, batches, samples)
    [row] = gate.written
    assert any(problem["what"].startswith("engine 1") for problem in row["problems"])


@pytest.mark.parametrize(
    ("replayed", "said"),
    [(0.2, "it is the choice of experts"), (0.0, "it is not the choice of experts")],
)
def test_a_failure_says_whether_it_is_the_routing(replayed, said):
    """By a replay of what the engine recorded; the verdict is on the trainer's own choice."""
    gate = Gate()
    batches, samples = make_step(gate, shift=0.2)
    for number, sample in enumerate(samples):
        sample.engine_routing = torch.tensor(replayed * (number % 2))
    with pytest.raises(PolicyMismatch, match=said):
        gate.compare(1, batches, samples)
    assert said in gate.written[0]["routing"]
    assert gate.group.calls == ["forward", "base_forward"] * 2


@pytest.mark.parametrize("flags", [{"parity_limit": 0}, {"top_p": 0.9}])
def test_some_runs_are_not_compared(flags):
    gate = Gate(**flags)
    batches, samples = make_step(gate, shift=0.2)
    gate.compare(1, batches, samples)
    assert gate.written == gate.group.calls == []


@pytest.mark.parametrize(("ranks", "batches", "scored"), [(2, 4, 64), (2, 12, 64), (8, 8, 128), (1, 1, 16)])
def test_every_rank_scores_as_many_micro_batches(ranks, batches, scored):
    gate = Gate(ranks)
    gate.compare(1, *make_step(gate, batches=batches))
    rows = {row["name"]: row["tokens"] for row in gate.written[0]["rows"]}
    assert rows["all"] == scored * (LENGTH - 1)
    assert {rows[f"rank {rank}"] for rank in range(ranks)} == {rows["all"] // ranks}
    assert rows["engine 0"] == rows["engine 1"]


def test_samples_of_unknown_engines_are_left_out():
    gate = Gate()
    batches, samples = make_step(gate)
    for sample in samples:
        sample.sampled_by = None
    gate.compare(1, batches, samples)
    assert gate.written == []


def test_rollouts_without_a_reward_are_left_out():
    """All of one rank, and some of the other: advantages.assign_to_tokens empties their masks."""
    gate = Gate()
    batches, samples = make_step(gate, batches=4)
    for batch in batches[2:]:
        batch.action_mask[:] = 0
    batches[0].action_mask[:3] = 0
    gate.compare(1, batches, samples)
    rows = {row["name"]: row["tokens"] for row in gate.written[0]["rows"]}
    assert rows["all"] == rows["rank 0"] == (2 * ROWS - 3) * (LENGTH - 1) and "rank 1" not in rows
    for batch in batches:
        batch.action_mask[:] = 0
    gate.compare(1, batches, samples)
    assert len(gate.written) == 1


def test_with_a_batch_ahead_the_policy_of_now_is_compared_on_the_next_one(monkeypatch):
    """The step's own samples are of the policy before: on them, engines and trainer differ."""
    trainer, gate, waited, scored = object.__new__(Trainer), Gate(), [], []
    batches, samples = make_step(gate, adapter=0.1)
    stale, old = make_step(gate, adapter=0.1, shift=0.2)

    def wait():
        waited.append(True)
        return samples

    trainer.args, trainer.log, trainer.gate = gate.args, gate.log, gate
    trainer.prefetch = SimpleNamespace(compute_staleness=lambda: 4, get_next_rollouts=wait)
    trainer.actors = gate.group
    trainer._compute_advantages = lambda copies: (scored.append(copies) or batches, None)
    for step in (2, 3):
        trainer._compare_with_engines(step, stale, old)
    assert [row["step"] for row in gate.written] == [2] and not gate.written[0]["problems"]
    assert len(waited) == 1, "later steps do not wait"
    assert scored[0] is not samples and scored[0][0] is not samples[0], "making micro-batches changes them"
    trainer.prefetch.compute_staleness, trainer.gate = lambda: 0, Gate()
    trainer.gate.group.adapter = 0.1
    with pytest.raises(PolicyMismatch):
        trainer._compare_with_engines(4, stale, old)
