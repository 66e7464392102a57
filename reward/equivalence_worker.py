"""The process that evaluates expressions: `python -m reward.equivalence_worker`, started by `equivalence`.

Reads a JSON list a line: two expressions, whether one may be a multiple of the other, and a limit in seconds of
processor time, at which the kernel ends this process; writes `true` or `false`. math-verify's parser reads the
expressions, and their values at three points decide: a simplification may take hours.
"""

import functools
import json
import logging
import os
import re
import resource
import signal
import sys

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

MEMORY_BYTES = 2**30
DIGITS, TOLERANCE = 120, sympy.Float("1e-100", 120)
_READING = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)

_FUNCTION = r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln)(?:[_^]\{[^{}]*\})*"
# The parser takes I for the imaginary unit, which is i here, E for e, and 2(3) and f(x) for other than products.
_RULES = tuple(
    (re.compile(pattern), full)
    for pattern, full in (
        (r"(?<![0-9.^_}])(\d+)\\frac\{(\d+)\}\{(\d+)\}", r"(\1+\\frac{\2}{\3})"),
        (r"(\d+)\.(\d*)", lambda match: f"\\frac{{{match[1]}{match[2]}}}{{1{'0' * len(match[2])}}}"),
        (r"°", r"\\cdot\\frac{\\pi}{180}"), (r"\\hbar", r"\\eta "),
        (r"\\sqrt\[(\d?[13579])\]\{-(\d+)\}", r"(-\\sqrt[\1]{\2})"),
        (r"\\cdot(?=\\(?:sin|cos|tan|log|ln))", " "),
        (r"\\[A-Za-z]+|[EI]", lambda match: {"E": "\\Upsilon ", "I": "\\Xi "}.get(match[0], match[0])),
        (rf"({_FUNCTION})|((?<![A-Za-z\\])[A-Za-z]|(?<![a-z])[0-9)}}])(?=\(|\\frac)",
         lambda match: match[1] or f"{match[2]}\\cdot "),
    )
)  # fmt: skip


def decide(first: str, second: str, is_multiple: bool) -> bool:
    """The verdict on two plain expressions. Raises anything on what it cannot read."""
    a, b = _parse(first), _parse(second)
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    ratio = None if is_multiple else 1
    for shift in (3, -5, 17):
        point = {symbol: sympy.Rational(shift * 7 + 4 * n, 11 + 2 * n) for n, symbol in enumerate(symbols)}
        x, y = (expression.evalf(DIGITS, subs=point) for expression in (a, b))
        if not (x.is_number and y.is_number and x.is_finite and y.is_finite):
            return False
        ratio = x / y if ratio is None else ratio
        if abs(x - ratio * y) > TOLERANCE * max(abs(x), abs(y)):
            return False
    return bool(symbols) or not is_multiple


@functools.lru_cache(10_000)
def _parse(text: str) -> sympy.Expr:
    for pattern, full in _RULES:
        text = pattern.sub(full, text)
    expression = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=_READING)
    return expression.subs({symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"})


def main() -> None:
    """Serves until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    logging.disable()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries is not a reply
    print(json.dumps(decide("\\frac{x}{2}+1", "1+x/2", False)), file=replies, flush=True)  # the first takes a second
    for line in sys.stdin:
        *question, limit = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            verdict = decide(*question)
        except Exception:  # of any kind, from any depth of the libraries
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(bool(verdict)), file=replies, flush=True)


if __name__ == "__main__":
    main()
