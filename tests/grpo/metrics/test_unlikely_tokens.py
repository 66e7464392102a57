import json

import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.metrics.unlikely_tokens import least_likely
from scripts import logprobs


@given(st.integers(0, 10_000), st.integers(1, 12), st.booleans())
def test_only_trained_tokens_are_listed_least_likely_first(seed, count, has_trainer):
    torch.manual_seed(seed)
    sequences = torch.randint(10, 99, (3, 9))
    mask = torch.rand(3, 8) < 0.5
    engine, trainer = -10 * torch.rand(3, 8), -10 * torch.rand(3, 8)
    listed = least_likely(sequences, mask, engine, trainer if has_trainer else None, str, count)
    lowest = torch.minimum(engine, trainer) if has_trainer else engine
    want = sorted((float(lowest[r, c]), r, c + 1) for r, c in mask.nonzero().tolist())[:count]
    assert [(row["sample"], row["position"]) for row in listed] == [entry[1:] for entry in want]
    for row in listed:
        tokens = sequences[row["sample"]].tolist()
        assert row["token"] == str([tokens[row["position"]]]) and row["before"] == str(tokens[: row["position"]])
        assert row["engine"] == float(engine[row["sample"], row["position"] - 1])
        assert (row["trainer"] is None) == (not has_trainer)


def test_the_report_marks_where_engine_and_trainer_differ(tmp_path, capsys):
    (tmp_path / "samples").mkdir()
    base = {"before": "so ", "after": " on", "engine": -9.0, "trainer": -9.1}
    rows = [{**base, "position": 5, "token": "and"}, {**base, "position": 6, "token": "\n", "trainer": -2.0}]
    rows.append({**base, "position": 7, "token": "x", "engine": -12.5, "trainer": None})
    for step, part in ((1, rows[:1]), (12, rows[1:])):
        lines = "".join(json.dumps({"sample": 7, "least_likely_tokens": [row]}) + "\n" for row in part)
        (tmp_path / "samples" / f"step_{step}.jsonl").write_text(lines + '{"sample": 8}\n')
    assert logprobs.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.startswith("!") for line in shown] == [False, False, True]  # -12.5, -9.1, -9.0
    assert '"so >>x<< on"' in shown[0] and '"so >>\\n<< on"' in shown[2] and "-2.000" in shown[2]
    assert logprobs.main([str(tmp_path), "--step", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"step": 1, "sample": 7, **rows[0]}
    assert logprobs.main([str(tmp_path), "--step", "3"]) == 2
    assert "name one of 1, 12" in capsys.readouterr().err
    assert logprobs.main([str(tmp_path), "--apart"]) == 0
    assert [line[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["!", " "], "those of both alone"
    assert logprobs.main([str(tmp_path), "--count", "0"]) == 2
    assert "--count is 0: give 1 or more" in capsys.readouterr().err
    assert logprobs.main([str(tmp_path / "none")]) == 2
    assert "has no samples: name a run directory" in capsys.readouterr().err
