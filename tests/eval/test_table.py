import json

from eval import table
from grpo.run.records import summarize_by_source


def make_result(correct: float | None, k: int = 1, **changes) -> dict:
    records = [
        {"id": f"{source}{n}", "datasource": source, "correct": correct, "answered": 1.0, "has_final": 1.0,
         "truncated": 0.25, "response_length": 100 * n, **changes}
        for source in ("aime", "math") for n in (1, 2) for _ in range(k)
    ]  # fmt: skip
    return summarize_by_source(records, sorted({1, k}))


def write(folder, steps: dict[int, float], **more) -> None:
    """The evaluations of a run, after these steps with these rates; it is killed in its next line."""
    rows = [{"step": step, **make_result(correct), **more} for step, correct in steps.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 30, "ex')


def test_a_run_is_base_steps_and_final(tmp_path, capsys):
    write(tmp_path, {0: 0.0, 10: 1.0, 20: 1.0})
    assert table.main([str(tmp_path)]) == 0
    assert "final" not in capsys.readouterr().out.splitlines()[-1], "it still runs"
    (tmp_path / "final").mkdir()
    assert table.main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["base", "step 10", "step 20, final"]
    assert "0.000 [0.000, 0." in lines[1]
    assert len({len(line) for line in lines}) == 1, "columns are aligned"
    (tmp_path / "eval.jsonl").rename((tmp_path / "disk").mkdir() or tmp_path / "disk" / "eval.jsonl")
    (tmp_path / "config.json").write_text(json.dumps({"flags": {"metrics_dir": str(tmp_path / "disk")}}))
    assert table.main([str(tmp_path)]) == 0 and capsys.readouterr().out.splitlines() == lines, "on another disk"


def test_evaluations_and_a_run_are_one_table(tmp_path, capsys):
    greedy = {"greedy": {"exact_match": 0.25, "ci_low": None, "ci_high": None}}
    run = tmp_path / "run"
    (run / "samples").mkdir(parents=True)
    write(run, {0: 0.0, 10: 0.0}, **greedy)
    problems = ["aime1", "aime2", "math1", "math2"]
    (run / "samples" / "eval_0.jsonl").write_text("".join(json.dumps({"id": name}) + "\n" for name in problems))
    for name, ids in (("teacher", problems), ("other", problems[:1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"identity": {}, "problems": ids, "n": 8, "k": [8]}))
        (tmp_path / name / "result.json").write_text(json.dumps(make_result(1.0, k=8)))
    folders = [str(tmp_path / name) for name in ("teacher", "run", "other")]
    assert table.main(folders) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [folders[0], "base", "step 10", folders[2]]
    assert lines[0].split()[2:5] == ["pass@1", "pass@8", "greedy"]
    assert printed.err == f"eval.table: warning: {folders[2]} has other problems than {folders[0]}\n"
    (run / "samples" / "eval_0.jsonl").unlink()
    assert table.main(folders[:2]) == 0 and "warning" not in capsys.readouterr().err
    assert table.main([folders[1], folders[1] + "/../run"]) == 0
    assert [line.split("  ")[0].rpartition("/")[2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "run base", "run step 10"] * 2  # fmt: skip
    (tmp_path / "teacher" / "result.json").unlink()
    assert table.main(folders) == 2
    assert "is not finished" in capsys.readouterr().err


def test_columns_without_numbers_are_left_out_and_sources_are_rows():
    lines = table.result_table(make_result(1.0))
    assert [line.split()[0] for line in lines[1:]] == ["all", "aime", "math"]
    assert "25.0%" in lines[1] and "thinking" not in lines[0] and "ungraded" not in lines[0]
    assert "thinking cut" in table.result_table(make_result(1.0, thinking_truncated=0.5))[0]
    assert "ungraded" in table.result_table(make_result(None))[0]
    assert "thinking" in table.result_table(make_result(1.0, answer_length=4))[0]


def test_what_is_no_evaluation_is_refused(tmp_path, capsys):
    for other, what in ((tmp_path, "is not an evaluation"), (__file__, "is not a folder")):
        assert table.main([str(other)]) == 2 and what in capsys.readouterr().err
    (tmp_path / "eval.jsonl").write_text('{"step": 0, "pass_at_k": [1]}\n')
    assert table.main([str(tmp_path)]) == 2
    assert "not the result of an evaluation" in capsys.readouterr().err
