"""What the comparison of engines and trainer computes and finds, on log-probs with known faults."""

import math

import pytest
import torch

from grpo.metrics.parity import STRETCH, Cell, Rollout, compare

LENGTH, ROLLOUTS = 60, 32


def make_rollouts(fault: str = "", noise: float = 0.002, effect: float = 0.1) -> list[Rollout]:
    """Rollouts of two engines on two ranks, with rounding and a fault of engine 1."""
    generator = torch.Generator().manual_seed(3)

    def draw_normal() -> torch.Tensor:
        return torch.randn(LENGTH, generator=generator)

    made = []
    for number in range(ROLLOUTS):
        base = -draw_normal().exp()
        scored = base + effect * draw_normal()
        sampled = scored + noise * draw_normal()
        if number % 2 and fault == "adapter":
            sampled = base + noise * draw_normal()
        if number % 2 and fault == "temperature":
            sampled = sampled / 0.9
        if number % 2 and fault == "drift":
            sampled = sampled + 0.2 * torch.linspace(0, 1, LENGTH).square() * draw_normal()
        if number % 2 and fault == "sinks":
            sampled = sampled + 0.1 * draw_normal()
        made.append(Rollout(number % 2, number // 16, number, torch.arange(10, 10 + LENGTH), sampled, scored, base))
    return made


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("adapter", "without its adapter"),
        ("temperature", "times the trainer's"),
        ("drift", "grows with the position"),
        ("sinks", "mean difference"),
    ],
)
def test_a_fault_is_found_in_its_engine(fault, words):
    whats = [problem.what for problem in compare(make_rollouts(fault)).problems(limit=0.05)]
    assert any(what.startswith("engine 1: ") and words in what for what in whats)
    assert not any(what.startswith("engine 0") for what in whats)


@pytest.mark.parametrize("effect", [0.0, 0.001, 0.1])
def test_rounding_is_no_fault(effect):
    comparison = compare(make_rollouts(effect=effect))
    assert list(comparison.problems(limit=0.05)) == []
    assert comparison.has_adapter == (effect > 0)


def test_a_few_tokens_with_other_experts_are_no_fault():
    """Seen in a healthy run: the engine is certain of one token of a group, the trainer's experts find it unlikely."""
    healthy = make_rollouts()
    for rollout in healthy[:6]:
        rollout.sampled[7], rollout.scored[7], rollout.base[7] = -0.02, -5.0, -5.0
    comparison = compare(healthy)
    assert list(comparison.problems(limit=0.05)) == []
    assert comparison.rows[0].mean.value < 0.01


def make_equal_rollouts(prompts: int, length: int, each: int = 8) -> list[Rollout]:
    """Rollouts that differ by about 0.2 nat, `each` of a prompt, all of them the same."""
    generator, made = torch.Generator().manual_seed(1), []
    for prompt in range(prompts):
        scored = -torch.randn(length, generator=generator).exp()
        sampled = scored + 0.2 + 0.1 * torch.randn(length, generator=generator)
        made += [Rollout(0, 0, prompt, torch.arange(length), sampled, scored, scored)] * each
    return made


@pytest.mark.parametrize(
    ("rollouts", "is_judged"),
    [
        (make_equal_rollouts(2, 100), False),
        (make_equal_rollouts(8, 100), True),
        (make_equal_rollouts(1, 8 * STRETCH, each=1), True),
    ],
)
def test_rollouts_of_a_prompt_say_much_the_same(rollouts, is_judged):
    """So a few prompts are not judged, however many rollouts they have; but one of many tokens is."""
    assert bool(list(compare(rollouts).problems(limit=0.05))) == is_judged


def test_one_token_says_nothing_of_the_scale():
    """Seen in a healthy run: a policy is certain of all tokens but one, which is the same in eight rollouts."""
    certain = [Rollout(0, 0, prompt, torch.arange(9), *torch.zeros(3, 9)) for prompt in range(8) for _ in range(8)]
    for rollout in certain[:8]:
        rollout.sampled[4], rollout.scored[4], rollout.base[4] = -0.9, -1.0, -1.0
    comparison = compare(certain)
    assert comparison.rows[0].scale.value == pytest.approx(0.9)
    assert list(comparison.problems(limit=0.05)) == []


@pytest.mark.parametrize(("parts", "beyond"), [(8, 8.47), (12, 6.24), (24, 4.88), (1e6, 4.0)])
def test_chance_is_as_rare_for_a_few_parts(parts, beyond):
    """Quantiles of Student's distribution at 1 - 3.17e-5, beyond which lie 4 errors of a normal one."""
    assert not Cell(0.05 + 0.97 * beyond, 1.0, parts).exceeds(0.05)
    assert Cell(0.05 + 1.03 * beyond, 1.0, parts).exceeds(0.05)
    # Welch: a difference has the freedom of both if they are alike, and of one if the other's error is small
    both = Cell(3.0, 1.0, parts).minus(Cell(1.0, 1.0, parts))
    assert both == Cell(2.0, pytest.approx(2**0.5), pytest.approx(2 * parts - 1))
    assert Cell(3.0, 1.0, parts).minus(Cell(1.0, 1e-9, 3)).parts == pytest.approx(parts)
    assert not Cell(math.nan, 1.0, parts).exceeds(0.0) and not Cell(1.0, math.nan, parts).exceeds(0.0)


def test_numbers_are_those_of_their_definition():
    comparison = compare(make_rollouts("drift"))
    row = next(row for row in comparison.rows if row.name == "engine 1")
    mine = [rollout for rollout in make_rollouts("drift") if rollout.engine == 1]
    sampled, scored = (torch.stack([getattr(one, side) for one in mine]).double() for side in ("sampled", "scored"))
    assert row.tokens == sampled.numel()
    difference = (sampled - scored).clamp(-0.5, 0.5)
    quarters = difference.abs().unflatten(1, (4, LENGTH // 4)).mean(2)
    errors = quarters.std(0) / len(mine) ** 0.5  # rollouts are of one length: the textbook's error of a mean
    assert [cell.value for cell in row.quarters] == pytest.approx(quarters.mean(0).tolist())
    assert [cell.error for cell in row.quarters] == pytest.approx(errors.tolist())
    of_rollouts = difference.abs().mean(1)
    assert row.mean.value == pytest.approx(of_rollouts.mean().item())
    assert row.mean.error == pytest.approx(of_rollouts.std().item() / len(mine) ** 0.5)
    slope = torch.linalg.lstsq(
        torch.stack([scored.flatten(), torch.ones(scored.numel())], 1).double(), sampled.flatten()
    )
    assert row.scale.value == pytest.approx(slope.solution[0].item())
