"""A bundle has what a report needs, and no secret in any spelling."""

import base64
import json
import shutil
import stat
import tarfile
import urllib.parse
from pathlib import Path

import pytest

from grpo.run.run_state import Run
from scripts import bundle

SECRET = "k3y/with+odd=characters"


@pytest.fixture
def run(make_run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SERVICE_API_KEY", SECRET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bundle, "GPU_REPORT", tmp_path / "gpu_check.json")
    run = make_run()
    run.step(1)
    run.evaluate(1, 0.5)
    run.write_samples(1, {"prompt": "a private problem"})
    (run.folder / "env.json").write_text('{"packages": {"torch": "2.10"}}')
    (run.folder / "checkpoints" / "step_1").mkdir(parents=True)
    (run.folder / "checkpoints" / "step_1" / "adapter.safetensors").write_bytes(b"weights")
    return run


def read(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {name.partition("/")[2]: archive.extractfile(name).read().decode() for name in archive.getnames()}


def test_it_has_what_a_report_needs_and_no_samples(run, tmp_path: Path, capsys) -> None:
    (run.folder / "logs" / "driver.log").write_text("".join(f"line {number}\n" for number in range(5000)))
    (run.folder / "logs" / "engines").mkdir()
    (run.folder / "logs" / "engines" / "0.log").write_text("ready\n")
    assert bundle.main([str(run.folder)]) == 0
    assert "tiny-1.tar.gz" in capsys.readouterr().out
    found = read(tmp_path / "tiny-1.tar.gz")
    assert {"config.json", "env.json", "command.sh", "metrics.jsonl", "eval.jsonl", "bundle.json"} <= found.keys()
    assert not [name for name in found if "samples" in name or "checkpoints" in name]
    lines = found["logs/driver.log"].splitlines()
    assert (len(lines), lines[0], lines[-1]) == (2000, "line 3000", "line 4999") and found["logs/engines/0.log"]
    about = json.loads(found["bundle.json"])
    assert about["step"] == 1 and "parity.jsonl" in about["missing"] and "config.json" not in about["missing"]
    assert stat.S_IMODE((tmp_path / "tiny-1.tar.gz").stat().st_mode) == 0o600


def test_samples_come_only_on_request(run, tmp_path: Path) -> None:
    assert bundle.main([str(run.folder), "--samples", "--out", "with.tar.gz"]) == 0
    assert "a private problem" in read(tmp_path / "with.tar.gz")["samples/step_1.jsonl"]


def test_the_report_of_gpu_check_is_packed(run, tmp_path: Path) -> None:
    report = tmp_path / "gpu_check.json"
    report.write_text('{"rungs": []}')
    bundle.pack(Run(run.folder), tmp_path / "one.tar.gz", samples=False, report=report)
    assert json.loads(read(tmp_path / "one.tar.gz")["gpu_check.json"]) == {"rungs": []}


SPELLINGS = {
    "plain": SECRET,
    "json": json.dumps({"key": SECRET}),
    "in hex": SECRET.encode().hex(),
    "of this shell, in json in json": json.dumps(json.dumps({"key": SECRET})),
    "a short password": "export DB_PASSWORD=s3c!x",
    "cut by a color": "the token hf_bbb\x1b[31m" + "b" * 34 + " was refused",
    "cut by a color, in json": json.dumps("the token hf_bbb\x1b[31m" + "b" * 34 + " was refused"),
    "url": "https://host/?key=" + urllib.parse.quote(SECRET, safe=""),
    "base64": base64.b64encode(f"user:{SECRET}".encode()).decode(),
    "assigned": "OTHER_TOKEN=not-in-this-shell-1234",
    "in json": '{"GEMINI_API_KEY": "not-in-this-shell-1234"}',
    "a key": "Authorization failed for AIza" + "b" * 35,
    "a new key": "Authorization failed for AQ.Ab8" + "b" * 40,
    "of GitHub": "remote: github_pat_" + "b" * 30,
    "in small letters": "api_key=not-in-this-shell-1234",
    "with a slash": "secret: abc/not-in-this-shell-1234",
    "in small letters, in json": '{"wandb_api_key": "not-in-this-shell-1234"}',
    "in json in json": json.dumps('{"password": "not-in-this-shell-1234"}'),
    "in a tuple": "('OPENAI_API_KEY', 'not-in-this-shell-1234')",
    "a header": "x-goog-api-key: not-in-this-shell-1234",
    "a bearer": "{'Authorization': 'Bearer not-in-this-shell-1234'}",
    "a parameter": "https://host/path?alt=sse&key=not-in-this-shell-1234",
    "a proxy": "http://user:not-in-this-shell-1234@proxy.example:3128",
    "a private key": "-----BEGIN PRIVATE KEY-----\nnot-in-this-shell-1234\n-----END PRIVATE KEY-----",
    "a private key without its end": "-----BEGIN OPENSSH PRIVATE KEY-----\nnot-in-this-shell-1234",
    "a name and a password": "cloning me:not-in-this-shell-1234@host failed",
    "a password with signs": "https://me:p@:not-in-this-shell-1234@host.example/path",
    "a password alone in an address": "redis://:not-in-this-shell-1234@host:6379/0",
    "a bearer alone": "curl -H 'Bearer not-in-this-shell-1234'",
    "a basic": "header: Basic bm90LWluLXRoaXMtc2hlbGwtMTIzNA==",
    "a scheme of GitHub": "Authorization: token not-in-this-shell-1234",
    "a token in small letters": "hf_token=not-in-this-shell-1234",
    "a token in json": '{"token": "not-in-this-shell-1234", "step": 1}',
    "in camel case": '{"accessToken": "not-in-this-shell-1234"}',
    "a password with a quote": json.dumps({"password": "a\"b'not-in-this-shell-1234"}),
    "a password with commas": "'db_password': 'a,b;not-in-this-shell-1234'",
    "netrc": "machine host.example login me password not-in-this-shell-1234",
    "netrc in lines": "machine host.example\n  login me\n  password not-in-this-shell-1234",
    "on a command line": "+ curl -u me:not-in-this-shell-1234 https://host.example",
    "a connection string": "AccountName=me;AccountKey=not-in-this-shell-1234==;",
    "a web token": f"got eyJhbGciOiJIUzI1NiJ9.{base64.b64encode(b'not-in-this-shell-1234').decode()}.c2lnbmF0dXJl",
    "of Slack": "xoxb-123456789012-not-in-this-shell-1234",
    "of Hugging Face": "the token hf_" + "b" * 34 + " was refused",
    "at a line's start, in json": json.dumps("x\nhf_" + "b" * 34),
    "after a flag": "+ tool --api-key not-in-this-shell-1234 --token not-in-this-shell-1234",
    "a short name": "export SSHPASS=not-in-this-shell-1234 DB_PASS=not-in-this-shell-1234",
    "of a signed address": "https://host/x?X-Amz-Signature=not-in-this-shell-1234",
    "of AWS": "ASIA" + "B" * 16,
}
PARTS = (SECRET, urllib.parse.quote(SECRET, safe=""), "not-in-this-shell-1234", "AIzabbb", "AQ.Ab8", "pat_bbb")
PARTS += (base64.b64encode(b"not-in-this-shell-1234").decode().rstrip("="), "hf_bbb", "ASIABBB", "c2lnbmF0dXJl")
PARTS += (SECRET.encode().hex(), json.dumps(json.dumps(SECRET)[1:-1])[1:-1], "s3c!x", "bbb")
PARTS += (base64.b64encode(f"user:{SECRET}".encode()).decode()[8:-4],)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_of_a_secret_stays(monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", SECRET)
    for text in (SPELLINGS[spelling], json.dumps({"flags": {}, "x": SPELLINGS[spelling]})):
        assert [part for part in PARTS if part in bundle.clean(text)] == []


def test_every_file_of_the_archive_is_cleaned(run, tmp_path: Path) -> None:
    names = {"logs/engine.log", "config.json", "samples/step_2.jsonl", "patches.json", "env.json"}
    for name in names:
        (run.folder / name).write_text(json.dumps({"flags": {}, "x": SPELLINGS["assigned"], "y": SECRET}) + "\n")
    assert bundle.main([str(run.folder), "--samples", "--out", "one.tar.gz"]) == 0
    found = read(tmp_path / "one.tar.gz")
    assert names <= found.keys() and "flags" in found["patches.json"]
    assert [part for part in PARTS if part in "\n".join(found.values())] == []


def test_a_secret_at_the_windows_border_leaves_no_part(run) -> None:
    """The window begins at every place within and around the secret, also in its longest spelling."""
    log = run.folder / "logs" / "long.log"
    quoted = urllib.parse.quote(SECRET, safe="")
    after = "the end\n" + "x" * 40 + "\n"
    log.write_text(f"{'a' * 400} {SECRET} {quoted} {after}")
    for cut in range(80):
        kept = bundle.tail(log, window=max(1, len(SECRET) + len(quoted) + len(after) + 2 - cut))
        for value in (SECRET, quoted):
            assert not [start for start in range(len(value) - 5) if value[start : start + 6] in kept], cut


def test_no_link_is_followed(run, tmp_path: Path, capsys) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "id").write_text("not for others")
    for link in (run.folder / "logs" / "linked.log", run.folder / "env.json"):
        link.unlink(missing_ok=True)
        link.symlink_to(private / "id")
    (run.folder / "logs" / "linked").symlink_to(private)
    assert bundle.main([str(run.folder), "--out", "one.tar.gz"]) == 1
    assert "env.json could not be read" in capsys.readouterr().err
    assert "not for others" not in "".join(read(tmp_path / "one.tar.gz").values())
    shutil.rmtree(run.folder / "logs")
    (run.folder / "logs").symlink_to(private)
    assert bundle.main([str(run.folder), "--out", "two.tar.gz"]) == 2
    assert "logs is a link" in capsys.readouterr().err and not (tmp_path / "two.tar.gz").exists()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_in_utf_16_is_read(run, encoding: str) -> None:
    file = run.folder / "logs" / "wide.log"
    file.write_bytes(("the token hf_" + "b" * 34 + " was refused\n").encode(encoding))
    assert "the token <key> was refused" in bundle.tail(file)


def test_other_words_stay() -> None:
    text = "MAX_TOKENS=4096 PAD_ID: 12345678 LEARNING_RATE=0.000001 tokens: 123456789 step 1: reward 0.5 "
    text += '{"max_tokens": 12345678, "eos_token": "<|return|>", "token_ids": [200002]} key: 12345678 '
    text += '"eos_token": "</s>", "pad_token": "<|endoftext|>", "token": "assistant", "sort_key": "response_length" '
    text += "token = tokenizer.encode(text) Basic information: name@host, mean:0.5 std:0.1 @decorated "
    text += "--label_key label --input_key prompt_2 forward_pass: 0.5 pass: 0.123 "
    text += "https://host/path?page=12345678 http://127.0.0.1:12345/a@b: no password was given"
    assert bundle.clean(text) == text


def test_an_archive_is_not_overwritten(run, tmp_path: Path, capsys) -> None:
    (tmp_path / "tiny-1.tar.gz").write_text("older")
    assert bundle.main([str(run.folder)]) == 2
    assert "--out" in capsys.readouterr().err and (tmp_path / "tiny-1.tar.gz").read_text() == "older"


def test_an_unreadable_file_is_named_and_the_rest_is_packed(run, tmp_path: Path, monkeypatch, capsys) -> None:
    (run.folder / "logs" / "engine.log").write_text("ready\n")

    def raise_error(file: Path) -> str:
        raise OSError("Input/output error")

    monkeypatch.setattr(bundle, "tail", raise_error)
    assert bundle.main([str(run.folder)]) == 1
    assert "logs/engine.log could not be read (Input/output error)" in capsys.readouterr().err
    found = read(tmp_path / "tiny-1.tar.gz")
    assert "metrics.jsonl" in found and "logs/engine.log" in json.loads(found["bundle.json"])["unreadable"]
    assert not list(tmp_path.glob(".tiny*"))
