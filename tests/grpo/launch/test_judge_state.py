"""The file of judgements between the parts of a run: what is kept or refused."""

from pathlib import Path

import pytest

from grpo.launch import judge
from grpo.stack.problem import UserError
from reward.judgements import Judgements


def test_run_starts_with_the_judgements_that_were_paid_for(configure, tmp_path: Path) -> None:
    run_judge = judge.of_run(configure(), False)
    judge.prepare(run_judge, tmp_path)
    Judgements(tmp_path / "judge.sqlite").end_claim("key", "value")
    judge.prepare(run_judge, tmp_path)
    assert Judgements(tmp_path / "judge.sqlite").find_or_claim("key", 0.0) == "value"


def test_a_file_of_judgements_that_is_broken_is_refused(configure, tmp_path: Path) -> None:
    (tmp_path / "judge.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match="move it away"):
        judge.prepare(judge.of_run(configure(), False), tmp_path)
    judge.prepare(judge.of_run(configure(JUDGE="0"), False), tmp_path)
