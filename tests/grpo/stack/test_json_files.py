import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.stack import json_files

FULL = """
import pathlib, resource, signal, sys
from grpo.stack import json_files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
json_files.replace(pathlib.Path(sys.argv[1]), "x" * 2000)
"""


def test_a_file_that_cannot_be_written_stays_as_it_is(tmp_path):
    file = tmp_path / "file"
    json_files.replace(file, "old\r\nπ")
    assert file.read_bytes() == "old\r\nπ".encode()
    done = subprocess.run([sys.executable, "-c", FULL, file], capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert file.read_bytes() == "old\r\nπ".encode()
    assert os.listdir(tmp_path) == ["file"]


@given(st.data())
def test_the_lines_before_a_cut_are_read(tmp_path_factory, data):
    rows = [{"step": number, "text": "a\u2028b"} for number in range(4)]
    file = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    whole = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    cut = data.draw(st.integers(0, len(whole)))
    file.write_bytes(whole[:cut])
    assert json_files.read_rows(file) == rows[: whole[:cut].count(b"\n")]


def test_a_missing_file_has_no_rows_and_lines_that_are_broken_or_hold_no_object_are_left_out(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert json_files.read_rows(file) == []
    json_files.replace_rows(file, [{"step": 1, "text": "π"}])
    with file.open("a") as opened:
        opened.write('{"step": 2, "ex{"step": 3}\n[1]\n3\n{"step": 4}\n')
    assert json_files.read_rows(file) == [{"step": 1, "text": "π"}, {"step": 4}]


@pytest.mark.parametrize(("digits", "is_read"), [(308, True), (309, False), (5000, False)])
def test_a_number_that_is_larger_than_all_floats_breaks_its_line_and_digits_in_a_text_do_not(tmp_path, digits, is_read):
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"step": 1, "correct": [-{digits * "9"}]}}\n{{"step": 2, "text": "{digits * "9"}"}}\n')
    assert [row["step"] for row in json_files.read_rows(file)] == [1] * is_read + [2]


def test_only_files_with_an_end_are_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a path of a socket is short
    os.mkfifo("pipe")
    Path("device").symlink_to("/dev/zero")
    Path("large").touch()
    os.truncate("large", 3 << 30)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    for name in ("pipe", "device", "large", "socket"):
        for read in (json_files.read_bytes, json_files.read_json, json_files.read_rows):
            with pytest.raises(OSError, match=name):
                read(Path(name))


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "_LONGEST", 9)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n' + "x" * 99)
    rows = json_files.numbered_rows(file)
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(OSError, match=r"rows\.jsonl"):
        next(rows)


def test_what_is_nested_too_deeply_is_no_json(tmp_path):
    file = tmp_path / "file"
    file.write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(ValueError):
        json_files.read_json(file)


KILLED = """
import os, pathlib, signal, sys
from grpo.stack import json_files
os.replace = lambda old, new: os.kill(os.getpid(), signal.SIGKILL)
json_files.replace(pathlib.Path(sys.argv[1]), "new")
"""


def test_the_next_call_removes_what_a_kill_left(tmp_path):
    file, alive = tmp_path / "file", tmp_path / f".file.{os.getppid()}"
    alive.touch()
    subprocess.run([sys.executable, "-c", KILLED, file])
    (left,) = {path.name for path in tmp_path.iterdir()} - {alive.name}
    assert left.startswith(".file.")
    json_files.replace(file, "newer")
    assert {path.name for path in tmp_path.iterdir()} == {"file", alive.name}, "another writer keeps its own"


def test_lines_of_a_users_file_have_their_numbers_and_faults(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes('{"text": "a\u2028b"}\r\n\n[1]\n{"cut\n'.encode() + b'"\xff"\n')
    rows = list(json_files.numbered_rows(file))
    assert rows[:2] == [(1, {"text": "a\u2028b"}), (3, [1])]
    assert [(number, type(value)) for number, value in rows[2:]] == [
        (4, json.JSONDecodeError),
        (5, UnicodeDecodeError),
    ]


def test_a_byte_order_mark_is_read_where_it_is_allowed(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n', encoding="utf-8-sig")
    assert list(json_files.numbered_rows(file, "utf-8-sig")) == [(1, {"a": 1})]
    assert isinstance(next(json_files.numbered_rows(file))[1], ValueError)
