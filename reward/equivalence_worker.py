"""The process that compares answers by algebra: `python -m reward.equivalence_worker`, started by `equivalence`.

Reads one JSON list a line: two answers, and a limit in seconds of processor time. Writes `true` or `false` a line,
after a first line that says that it is ready. It ends when its input does. The kernel ends it at the limit, even inside
one long operation and after the parent is gone. It gets at most MEMORY_BYTES of memory.
"""

import json
import logging
import os
import resource
import signal
import sys

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import verify

from reward import constants
from reward.comparison import EQUAL, POSITIVE_MULTIPLE, equal
from reward.expression import decide_cheaply, rewrite_for_parser

MEMORY_BYTES = 2**30
READY = "ready"
WARM_UP = (
    ("\\sqrt{8}+x", "x+2\\sqrt{2}"),
    ("\\frac{x(x+1)}{\\sin x}", "x^2"),
    ("x+y=3", "y=3-2x"),
    ("e^{i\\pi}", "-1"),
)

_READING = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)


def decide(first: str, second: str, question: str) -> bool:
    """The verdict of `comparison` on two plain expressions: by numbers where possible, else by algebra."""
    verdict = decide_cheaply(first, second, question)
    if verdict is not None:
        return verdict
    a, b = _parse(first), _parse(second)
    if a is None or b is None:
        return False
    if question == EQUAL:
        return _are_equal(a, b)
    ratio = sympy.simplify(a / b)
    return bool(ratio.is_positive if question == POSITIVE_MULTIPLE else ratio.is_number and ratio.is_nonzero)


def _parse(text: str) -> sympy.Expr | None:
    try:
        expression = latex2sympy(
            rewrite_for_parser(text), is_real=True, normalization_config=None, conversion_config=_READING
        )
    except Exception:  # its parser raises Exception itself for unreadable text
        return None
    if not isinstance(expression, sympy.Expr):
        return None
    expression = expression.subs({symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"})
    expression = expression.replace(
        _is_root_of_negative, lambda power: (-1) ** power.exp.p * (-power.base) ** power.exp
    )
    return None if expression.has(sympy.nan, sympy.zoo, sympy.oo) else expression


def _is_root_of_negative(power: sympy.Expr) -> bool:
    """Whether it is a root such as the cube root of -8, which is -2 in answers and complex in sympy."""
    return bool(
        power.is_Pow and power.exp.is_Rational and power.exp.q % 2 and power.exp.q > 1 and power.base.is_negative
    )


def _are_equal(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Numbers decide what differs, and identities of constants; algebra decides identities of variables.

    math-verify rounds differences to 15 places, and takes letters of either case for the same. Numbers are also faster
    for unequal pairs, which are most.
    """
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    point = {symbol: sympy.Rational(2 * n + 3, 7) + sympy.Rational(n * n, 11) for n, symbol in enumerate(symbols, 1)}
    agree = constants.are_equal(constants.evaluate(a.subs(point)), constants.evaluate(b.subs(point)))
    if agree is False or (agree and not symbols):
        return agree
    return bool(sympy.expand(a - b) == 0 or verify(a, b, timeout_seconds=None))


def main() -> None:
    """Serves until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    logging.disable()  # math-verify warns that its own time-outs are off
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries is not a reply
    for pair in WARM_UP:  # the first of each kind takes seconds: grammars, simplification, linear algebra
        equal(*pair, decide)
    print(json.dumps(READY), file=replies, flush=True)
    for line in sys.stdin:
        first, second, limit = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            verdict = equal(first, second, decide)
        except MemoryError:  # what filled it may never be freed: the parent starts another worker
            print("false", file=replies, flush=True)
            return
        except Exception:  # of any kind, from any depth of the libraries: such pairs count as unequal
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=replies, flush=True)


if __name__ == "__main__":
    main()
