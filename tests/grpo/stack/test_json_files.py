import json
import os
import subprocess
import sys

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


def test_a_file_that_is_not_there_has_no_rows_and_a_broken_line_is_left_out(tmp_path):
    assert json_files.read_rows(tmp_path / "none.jsonl") == []
    (tmp_path / "rows.jsonl").write_text('{"step": 1}\n{"step": 2, "ex{"step": 3}\n{"step": 4}\n')
    assert [row["step"] for row in json_files.read_rows(tmp_path / "rows.jsonl")] == [1, 4]


KILLED = """
import os, pathlib, signal, sys
from grpo.stack import json_files
os.replace = lambda old, new: os.kill(os.getpid(), signal.SIGKILL)
json_files.replace(pathlib.Path(sys.argv[1]), "new")
"""


def test_what_a_kill_leaves_aside_goes_with_the_next_call(tmp_path):
    file, alive = tmp_path / "file", tmp_path / f".file.{os.getppid()}"
    alive.touch()
    subprocess.run([sys.executable, "-c", KILLED, file])
    (left,) = {path.name for path in tmp_path.iterdir()} - {alive.name}
    assert left.startswith(".file.")
    json_files.replace(file, "newer")
    assert {path.name for path in tmp_path.iterdir()} == {"file", alive.name}, "another writer keeps its own"
