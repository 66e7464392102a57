"""docs/experiments.md: its table follows from its formula, which is that of eval.compare."""

import math

from grpo.run.estimators import t_quantile
from tests.docs.pages import get_page


def test_the_table_of_detectable_gains_follows_from_the_formula() -> None:
    header, *rows = next(table for table in get_page("docs/experiments.md").tables if table[0][0] == "problems")
    samples = [int(cell.split()[0]) for cell in header[1:]]
    for problems, *gains in ([float(cell) for cell in row] for row in rows):
        quantiles = t_quantile(0.975, int(problems) - 1) + t_quantile(0.8, int(problems) - 1)
        for n, gain in zip(samples, gains, strict=True):
            error = math.sqrt((0.1**2 + 2 / 8 / n) / problems)
            assert gain == round(quantiles * error + 1 / (problems * n), 3)
