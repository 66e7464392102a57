"""The file of judgements between the parts of a run: what is kept, merged or refused."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.launch import judge
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError
from reward.limits import Limits, Slot
from reward.shared_state import Judgements, SharedState


def test_run_starts_with_cached_judgements_and_nothing_else(configure, tmp_path: Path) -> None:
    run_judge = judge.of_run(configure(), False)
    judge.prepare(run_judge, tmp_path)
    state = SharedState(tmp_path / "judge.sqlite")
    Judgements(state).store("key", "value")
    Judgements(state).add_to_mean(True, 0.5)
    with state.transaction() as connection:  # as an earlier version of the table
        connection.execute("DROP TABLE models")
        connection.execute("CREATE TABLE models (model TEXT PRIMARY KEY)")
    judge.prepare(run_judge, tmp_path)
    assert run_judge.settings
    slot = Limits(state, run_judge.settings.chain).take("first", 1, 0.0)
    assert isinstance(slot, Slot)
    assert Judgements(state).find_or_claim("key", 0.0) == "value"
    assert math.isnan(Judgements(state).mean_quality(True))


def test_finished_run_leaves_one_judge_file(configure, tmp_path: Path) -> None:
    run_judge = judge.of_run(configure(), False)
    judge.finish(run_judge, tmp_path)
    assert list(tmp_path.glob("judge*")) == [], "nothing is made where there was nothing"
    judge.prepare(run_judge, tmp_path)
    killed = (
        "import os, sys; from pathlib import Path; from reward.shared_state import Judgements, SharedState;"
        "Judgements(SharedState(Path(sys.argv[1]))).store('key', 'value'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "judge.sqlite")], cwd=CHECKOUT, check=True)
    assert len(list(tmp_path.glob("judge*"))) > 1
    judge.finish(run_judge, tmp_path)
    assert [file.name for file in tmp_path.glob("judge*")] == ["judge.sqlite"]
    assert Judgements(SharedState(tmp_path / "judge.sqlite")).find_or_claim("key", 0.0) == "value"


def test_a_broken_file_does_not_hide_how_a_run_ended(configure, tmp_path: Path, caplog) -> None:
    (tmp_path / "judge.sqlite").write_bytes(b"no database" * 1000)
    judge.finish(judge.of_run(configure(), False), tmp_path)
    assert "was not merged" in caplog.text


def test_a_file_of_judgements_that_is_broken_is_refused(configure, tmp_path: Path) -> None:
    (tmp_path / "judge.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match="move it away"):
        judge.prepare(judge.of_run(configure(), False), tmp_path)
    judge.prepare(judge.of_run(configure(JUDGE="0"), False), tmp_path)
