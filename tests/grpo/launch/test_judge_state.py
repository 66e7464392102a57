"""The file of judgements between the parts of a run: what is kept or refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo.launch import judge
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError
from reward.judgements import Judgements


def test_run_starts_with_the_judgements_that_were_paid_for(configure, tmp_path: Path) -> None:
    run_judge = judge.choose_judge(configure(), False)
    judge.prepare(run_judge, tmp_path)
    Judgements(tmp_path / "judge.sqlite").end_claim("key", "value")
    judge.prepare(run_judge, tmp_path)
    assert Judgements(tmp_path / "judge.sqlite").find_or_claim("key", 0.0) == "value"


def test_finished_run_leaves_one_judge_file(configure, tmp_path: Path) -> None:
    run_judge = judge.choose_judge(configure(), False)
    judge.finish(run_judge, tmp_path)
    assert list(tmp_path.glob("judge*")) == [], "nothing is made where there was nothing"
    killed = (
        "import os, sys; from pathlib import Path; from reward.judgements import Judgements;"
        "Judgements(Path(sys.argv[1])).end_claim('key', 'value'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "judge.sqlite")], cwd=CHECKOUT, check=True)
    assert len(list(tmp_path.glob("judge*"))) > 1
    judge.finish(run_judge, tmp_path)
    assert [file.name for file in tmp_path.glob("judge*")] == ["judge.sqlite"]
    assert Judgements(tmp_path / "judge.sqlite").find_or_claim("key", 0.0) == "value"


def test_a_broken_file_does_not_hide_how_a_run_ended(configure, tmp_path: Path, caplog) -> None:
    (tmp_path / "judge.sqlite").write_bytes(b"no database" * 1000)
    judge.finish(judge.choose_judge(configure(), False), tmp_path)
    assert "was not merged" in caplog.text


def test_a_file_of_judgements_that_is_broken_is_refused(configure, tmp_path: Path) -> None:
    (tmp_path / "judge.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match="move it away"):
        judge.prepare(judge.choose_judge(configure(), False), tmp_path)
    judge.prepare(judge.choose_judge(configure(JUDGE="0"), False), tmp_path)
