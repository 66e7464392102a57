"""Grades a second on one core: math-verify called on the whole response, and ours, on responses of gpt-oss's form.

The stock way is `verify(parse(gold), parse(response))`, as documented and as trainers call it. Both get the same
responses: a long analysis and a final message with a boxed integer, like AIME's answers. Half of the responses are
right, and every second pair is written in one of the FORMS. Ours must grade all of them correctly, which is checked
before the timing. The number that math-verify grades correctly is reported. `algebra` is ours on new pairs that need
the worker process, one at a time.
"""

import argparse
import random
import time

from grpo.stack.problem import UserError
from reward import equivalence
from reward.answers import grade
from scripts.bench.harness import Result, time_in_turn
from scripts.bench.machine import Copy

THOUGHT = "Let $x=\\frac{a}{b}$, so $x^2+1=\\boxed{12}$ cannot hold. "
FORMS = ("{:03d}", "{}\\text{{ cm}}", "{}^\\circ", "x={}", "\\mathbf{{{}}}", "m+n = {}")
REPLY = "We get $\\frac{1}{2}$ of them. "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--responses", type=int, default=200, help="different responses (default: 200)")
    parser.add_argument("--analysis-chars", type=int, default=10_000, help="length of the analysis (default: 10000)")
    parser.add_argument("--algebra", type=int, default=20, help="pairs that need algebra (default: 20)")
    parser.add_argument("--repeat", type=int, default=5, help="timed rounds; the best counts (default: 5)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    from math_verify import parse, verify

    if min(options.responses, options.repeat, options.algebra) < 1 or options.analysis_chars < 0:
        raise UserError(
            "an option is out of range",
            "--responses, --repeat and --algebra must be at least 1, and --analysis-chars at least 0",
        )
    samples = make_samples(options.responses, options.analysis_chars)

    def stock() -> list[bool]:
        return [verify(parse(gold), parse(response)) for response, gold, _ in samples]

    def ours() -> list[bool]:
        return [grade(response, gold).correct for response, gold, _ in samples]

    truth = [right for _, _, right in samples]
    if ours() != truth:
        raise RuntimeError("ours graded an integer wrongly: run pytest tests/reward")
    stock_right = sum(verdict == right for verdict, right in zip(stock(), truth, strict=True))
    timings = time_in_turn({"stock": stock, "ours": ours}, options.repeat)
    return Result(
        what=f"grades of {options.responses} boxed integers after an analysis of {options.analysis_chars} characters",
        unit="grades/s",
        stock=options.responses / timings["stock"].seconds,
        ours=options.responses / timings["ours"].seconds,
        higher_is_better=True,
        details={
            "cores_stock": timings["stock"].cores,
            "cores_ours": timings["ours"].cores,
            "right_stock": stock_right,
            "right_ours": len(truth),
            **_algebra(options.algebra),
        },
    )


def make_samples(number: int, characters: int) -> list[tuple[str, str, bool]]:
    """Return (response, gold, whether it is right); every second one is right."""
    generator = random.Random(0)
    analysis = (THOUGHT * (characters // len(THOUGHT) + 1))[:characters]
    samples = []
    for index in range(number):
        value, right = generator.randrange(1000), index % 2 == 0
        gold = value if right else (value + 1) % 1000
        # Forms change with every fourth sample, so each is right as often as wrong.
        written = FORMS[index // 4 % len(FORMS)].format(value) if index % 4 > 1 else str(value)
        response = (
            f"<|channel|>analysis<|message|>{analysis}<|end|><|start|>assistant<|channel|>final<|message|>"
            f"{REPLY * 10}$\\boxed{{{written}}}$<|return|>"
        )
        samples.append((response, f"{gold:03d}", right))
    return samples


def _algebra(pairs: int) -> dict[str, float]:
    begin = time.perf_counter()
    equivalence.equal("x(x+1)", "x^2+x")
    started = time.perf_counter() - begin
    begin = time.perf_counter()
    for n in range(pairs):
        if not equivalence.equal(f"\\frac{{x^2-{n + 2}}}{{3}}", f"\\frac{{x^2}}{{3}}-\\frac{{{n + 2}}}{{3}}"):
            raise RuntimeError("ours graded an expression wrongly: run pytest tests/reward")
    return {"first_algebra_s": started, "algebra_per_s": pairs / (time.perf_counter() - begin)}
