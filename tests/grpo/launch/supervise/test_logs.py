"""The logs of a run: the end of the driver's, and those that Ray keeps."""

from pathlib import Path

from grpo.launch.supervise import keeper
from grpo.launch.supervise.last_words import tail


def test_the_tail_of_a_log_is_readable(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text(
        "first\n\x1b[36m(actor)\x1b[0m loading\n\nstep:  50%|#| 1/2\rstep: 100%|#| 2/2\nValueError: reason\n"
    )
    assert tail(log, 2) == ["(actor) loading", "ValueError: reason"]
    assert tail(tmp_path / "absent.log", 2) == []


def test_ray_logs_of_earlier_parts_are_kept_under_a_number(tmp_path: Path) -> None:
    kept = tmp_path / "ray"
    keeper.make_way(kept)
    kept.symlink_to(tmp_path / "gone")  # launcher and keeper were both killed
    keeper.make_way(kept)
    assert not kept.is_symlink()
    for part in ("first", "second"):
        kept.mkdir()
        (kept / "raylet.out").write_text(part)
        keeper.make_way(kept)
    assert [(tmp_path / f"ray.{n}" / "raylet.out").read_text() for n in (1, 2)] == ["first", "second"]
