from grpo.checkpoint.on_request import LONGEST, SaveRequest


def test_a_failure_needs_no_room_on_the_disk(tmp_path) -> None:
    file = tmp_path / "request"
    request = SaveRequest(file)
    request.ask()
    before = file.stat()
    assert request.is_open() and not request.failure()
    request.fail("OSError: No space left on device")
    after = file.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert not request.is_open() and request.failure() == "OSError: No space left on device"
    request.ask()
    request.fail("\N{GREEK SMALL LETTER ALPHA}" * LONGEST)
    assert file.stat().st_size == LONGEST and request.failure() == "\N{GREEK SMALL LETTER ALPHA}" * (LONGEST // 2)
    request.close()
    assert not request.is_open() and not request.failure()
