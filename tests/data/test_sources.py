"""Reading rows: local files, and a folder in the form of a hub repository that `datasets` really loads."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from data.prepare import Source, prepare
from data.sources import HUB, HubSet, read_hub, read_source
from grpo.stack.problem import UserError
from tests.data.conftest import make_aime_rows, make_math_rows, read_split, write_rows

ROMAN = {1: "I", 2: "II"}


@pytest.fixture
def datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` keeps what it loads under tmp_path."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_repository(folder: Path, rows_of: dict[str, list[dict]], folders: dict[str, str]) -> Path:
    """Parquet files and the README with configurations, as the hub has them."""
    lines = ["---", "configs:"]
    for configuration, rows in rows_of.items():
        subfolder = folder / folders[configuration]
        subfolder.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), subfolder / "train-00000-of-00001.parquet")
        lines += [f"- config_name: {configuration}", "  data_files:", "  - split: train"]
        lines += [f"    path: {folders[configuration]}/train-*"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


def test_aime_in_the_columns_of_the_hub(tmp_path, datasets_cache, monkeypatch) -> None:
    rows = [
        {
            "id": at,
            "problem": row["problem"],
            "solution": "It follows.",
            "answer": row["answer"],
            "url": "https://artofproblemsolving.com/wiki/index.php/"
            f"{row['year']}_AIME_{ROMAN[row['contest']]}_Problems/Problem_{row['number']}",
        }
        for at, row in enumerate(make_aime_rows())
    ]
    folder = write_repository(tmp_path / "aime", {"default": rows}, {"default": "data"})
    monkeypatch.setitem(HUB, "aime", replace(HUB["aime"], repository=str(folder)))
    card = prepare([Source("aime")], tmp_path / "hub")
    prepare([Source(str(write_rows(tmp_path / "aime.jsonl", make_aime_rows())))], tmp_path / "local")
    for split, count in (("train", 72), ("eval", 18)):
        assert read_split(tmp_path / "hub", split) == read_split(tmp_path / "local", split)
        assert card["files"][f"{split}.jsonl"]["year"] == {str(year): count // 3 for year in (2022, 2023, 2024)}
    assert card["sources"][0]["revision"] == HUB["aime"].revision
    parquet = folder / "data" / "train-00000-of-00001.parquet"
    prepare([Source(str(parquet))], tmp_path / "downloaded")
    assert read_split(tmp_path / "downloaded", "train") == read_split(tmp_path / "hub", "train")


def test_math_in_the_columns_of_the_hub(tmp_path, datasets_cache, monkeypatch) -> None:
    by_subject: dict[str, list[dict]] = {configuration: [] for configuration in HUB["math"].configurations}
    for i, row in enumerate(make_math_rows(140)):
        configuration = HUB["math"].configurations[i % 7]
        solution = f"First \\boxed{{0}}, then $\\boxed{{{row['answer']}}}$."
        level = f"Level {1 + i // 7 % 5}"
        by_subject[configuration].append(
            {"problem": row["problem"], "level": level, "type": configuration.title(), "solution": solution}
        )
    folder = write_repository(tmp_path / "math", by_subject, {name: name for name in by_subject})
    monkeypatch.setitem(HUB, "math", replace(HUB["math"], repository=str(folder)))
    card = prepare([Source("math")], tmp_path / "out")
    records = read_split(tmp_path / "out", "train") + read_split(tmp_path / "out", "eval")
    assert len(records) == 45 and card["left_out"] == {"another level than 4 and 5": 84, "beyond the 45 of MATH": 11}
    golds = {row["problem"]: row["answer"] for row in make_math_rows(140)}
    for record in records:
        assert json.loads(record["label"])["answer"] == golds[record["prompt"].split("\n\n")[0]]


def test_rows_made_in_memory_come_with_their_places(monkeypatch) -> None:
    import datasets

    rows = [{"problem": "Halve a.", "answer": 3}, {"problem": None, "answer": 4}]
    asked = []

    def load(repository: str, configuration: str, **options: str) -> datasets.Dataset:
        asked.append((repository, configuration, options))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *arguments, **options: None)
    loaded, origin = read_hub(HubSet("org/set", "c0ffee", ("one", "two")))
    assert asked == [("org/set", name, {"split": "train", "revision": "c0ffee"}) for name in ("one", "two")]
    assert [row.value for row in loaded] == rows * 2
    assert [row.location for row in loaded] == [f"org/set ({name}), row {n}" for name in ("one", "two") for n in (1, 2)]
    assert (origin["rows"], origin["hub"], origin["revision"]) == (4, "org/set", "c0ffee")


def test_without_network_the_error_suggests_local_files(tmp_path, datasets_cache, monkeypatch) -> None:
    import datasets

    def refuse_network(*arguments: object, **options: object) -> None:
        raise AssertionError("the offline mode asked the network")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket, "getaddrinfo", refuse_network)
    for name in ("aime", "math"):
        with pytest.raises(UserError, match=r"could not be loaded(.|\n)*hf download .*--revision(.|\n)*\.jsonl"):
            read_source(name)


def test_an_unreachable_hub_is_asked_once_and_quietly(tmp_path, datasets_cache, monkeypatch, capfd) -> None:
    import datasets

    asked = []

    def refuse_name(host: str, *arguments: object, **options: object) -> None:
        asked.append(host)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse_name)
    with pytest.raises(UserError, match=r"the hub cannot be reached \(Connect(ion)?Error\)(.|\n)*hf download"):
        read_source("aime")
    # From 1.0 on, huggingface-hub also asks for a list of its own.
    assert len(asked) <= 2 and "Retrying" not in capfd.readouterr().err


def test_the_hub_sets_are_pinned_to_commits() -> None:
    for hub in HUB.values():
        assert len(hub.revision) == 40 and int(hub.revision, 16)


def test_json_and_parquet_give_what_jsonl_gives(tmp_path: Path) -> None:
    rows = make_aime_rows()
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    write_rows(tmp_path / "a.jsonl", rows)
    for ending in ("json", "jsonl", "parquet"):
        prepare([Source(str(tmp_path / f"a.{ending}"))], tmp_path / ending)
    for split in ("train", "eval"):
        contents = {(tmp_path / ending / f"{split}.jsonl").read_bytes() for ending in ("json", "jsonl", "parquet")}
        assert len(contents) == 1


def test_rows_have_line_or_row_numbers(tmp_path: Path) -> None:
    lines = write_rows(tmp_path / "a.jsonl", [{"problem": "a"}])
    lines.write_text(lines.read_text() + "\n\n{\n")
    assert [row.location for row in read_source(str(lines))[0]] == [f"{lines}, line 1", f"{lines}, line 4"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"problem": "a"}] * 2), tmp_path / "a.parquet")
    locations = [row.location for row in read_source(str(tmp_path / "a.parquet"))[0]]
    assert locations == [f"{tmp_path / 'a.parquet'}, row {number}" for number in (1, 2)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "not a file"),
        ("a.txt", b"x", "unknown file type"),
        ("a.json", b"{", "is not JSON"),
        ("a.json", b"{}", "is not a list of problems"),
        ("a.parquet", b"no parquet", "not a parquet file"),
    ],
)
def test_a_source_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_source(str(tmp_path / name))
