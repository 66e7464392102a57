import json
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.metrics.step_metrics import SHOWN, least_likely
from scripts import logprobs


@given(st.integers(0, 10_000), st.booleans())
def test_only_trained_tokens_are_listed_least_likely_first(seed, has_trainer):
    torch.manual_seed(seed)
    rows = [
        SimpleNamespace(
            sequences=torch.randint(10, 99, (1, 9)),
            action_mask=torch.rand(1, 8) < 0.5,
            rollout_log_probs=-10 * torch.rand(1, 8),
        )
        for _ in range(3)
    ]
    sample = rows[-1]
    sample.branches = rows[:-1]
    places = [(branch, at) for branch, row in enumerate(rows) for at in row.action_mask[0].nonzero().flatten().tolist()]
    trainer = -10 * torch.rand(len(places))
    engine = [float(rows[branch].rollout_log_probs[0, at]) for branch, at in places]
    lowest = [min(*pair) for pair in zip(engine, trainer.tolist(), strict=True)] if has_trainer else engine
    order = sorted(range(len(places)), key=lowest.__getitem__)[:SHOWN]
    listed = least_likely(sample, trainer if has_trainer else None, str)
    assert [(token["branch"], token["position"] - 1) for token in listed] == [places[number] for number in order]
    for token, number in zip(listed, order, strict=True):
        tokens, position = rows[token["branch"]].sequences[0].tolist(), token["position"]
        assert token["token"] == str([tokens[position]]) and token["before"] == str(tokens[:position])
        assert token["engine"] == engine[number]
        assert token["trainer"] == (float(trainer[number]) if has_trainer else None)


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
    assert logprobs.main([str(tmp_path), "--step", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert logprobs.main([str(tmp_path), "--step", "3"]) == 2
    assert logprobs.main([str(tmp_path), "--apart"]) == 0
    assert [line[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["!", " "], "those of both alone"
    assert logprobs.main([str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
