"""Which source sets a flag, and what is said of it."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from grpo.flags import boxes, other_names, ours, parser
from grpo.flags.parser import Asked, fill, make_parser, shipped_values
from grpo.flags.upstream import parse_given
from grpo.launch import run_dir
from grpo.launch.config import Config, resolve
from grpo.launch.flags import make_trainer_words
from grpo.run.progress import describe_continuation
from grpo.stack.problem import UserError
from tests.grpo.launch.recipe import ROOT, read_script


def ask(*words: str, script: list[str] | None = None) -> Asked:
    asked = Asked({})
    script = read_script() if script is None else script
    fill(asked, [*script, "--", *words], lambda folder: run_dir.read_asked(Path(folder)))
    return asked


def edit(**changes: str) -> list[str]:
    """The script's words with another value of some lines."""
    words = read_script().copy()
    for name, value in changes.items():
        words[words.index(f"--{name}") + 1] = value
    return words


def keep(folder: Path, asked: Asked) -> Path:
    """Leave what a run leaves of its flags."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"script": asked.script, "sources": asked.sources}))
    (folder / "command.sh").write_text(run_dir.make_script(asked, folder, resolve_run(asked, folder)))
    return folder


def resolve_run(asked: Asked, folder: Path) -> Config:
    return resolve(make_trainer_words(asked.values), folder)


def test_the_script_is_the_shipped_one() -> None:
    assert parse_given(make_parser(), read_script()) == shipped_values() | {"script_file": str(ROOT / "train_grpo.sh")}
    assert ask().list_differences() == {}
    lines = [line.split("#")[0].strip() for line in (ROOT / "train_grpo.sh").read_text().splitlines()]
    flags = [line for line in lines if line.startswith("--")]
    assert len(flags) == len(shipped_values()), "one flag a line"


def test_the_command_line_wins_over_the_script_and_undoes_its_switches(monkeypatch) -> None:
    asked = ask("--tiny", "--lora_rank", "5", "--no-judge", "--target_modules", "q_proj", "--no-enforce_eager")
    assert (asked.values["lora_rank"], asked.values["judge"], asked.values["target_modules"]) == (5, False, ["q_proj"])
    assert asked.values["enforce_eager"] is False
    assert ask("--lora_rank", "5", "--", "--lora_rank", "6").values["lora_rank"] == 6, "also with a `--` of the user's"


@pytest.mark.parametrize(
    "given", [["--environment", "python"], ["--advantage_clip", "0.2"], ["--log_samples", "3"], ["--run-dir", "a"],
              ["--reasoning_effort", "low"], ["--eps_clip_low_high", "0.2", "0.3"], ["--target_modules", "q_proj"]]
)  # fmt: skip
def test_an_empty_value_undoes_a_flag_also_at_a_resume(tmp_path: Path, given: list[str]) -> None:
    flag, [name] = given[0], parse_given(make_parser(), given)
    for empty in ([flag, ""], [f"{flag}="]):
        assert parse_given(make_parser(), [*given, *empty]) == {name: None}
        assert parse_given(make_parser(), [*empty, *given])[name] is not None, "the last one counts"
    if name not in parser.OPTIONS:
        run = keep(tmp_path / "run", ask(*given))
        assert name in ask("--resume", str(run)).values and name not in ask("--resume", str(run), flag, "").values


def test_every_switch_can_be_undone() -> None:
    switches = [action for action in make_parser()._actions if isinstance(action, ours.SWITCH)]
    assert len(switches) > 25
    for action in switches:
        on, off = action.option_strings
        assert parse_given(make_parser(), [on, off]) == {action.dest: False}


def test_an_edit_wins_over_a_box_and_both_are_named() -> None:
    """An edited line was silently ignored with --tiny, and edited engines with --gpus 4."""
    script = edit(actor_learning_rate="3e-5", actor_num_gpus_per_node="1")
    for options in (["--tiny"], ["--gpus", "4"]):
        asked = ask(*options, script=script)
        differs = asked.list_differences()
        assert differs["--actor_learning_rate"] == ("3e-05", "1e-05", "edited script")
        assert differs["--actor_num_gpus_per_node"] == ("1", "4", "edited script")
        assert differs["--vllm_num_engines"][::2] == ("1", " ".join(options))
    said = "\n".join(ask("--tiny").describe())
    for name, value in boxes._TINY.items():  # each line in whose place --tiny sets another
        flag = "--steps" if name == "max_steps" else f"--{name}"
        assert value == shipped_values().get(name) or f"{flag} " in said


@pytest.mark.parametrize(
    ("words", "total"),
    [
        ("--gpus 8 --actor_num_gpus_per_node 7", "11 GPUs of 8"),
        ("--gpus 8 --vllm_num_engines 1 --actor_num_gpus_per_node 7", "9 GPUs of 8"),
        ("--gpus 2 --vllm_tensor_parallel_size 8", "9 GPUs of 2"),
        ("--gpus 4 --colocate_all_models --actor_num_gpus_per_node 8", "8 GPUs of 4"),
        ("--gpus 4 --actor_shard engine --actor_num_gpus_per_node 8", "8 GPUs of 4"),
        ("--tiny --gpus 1 --actor_num_gpus_per_node 2", "2 GPUs of 1"),
    ],
)
def test_more_gpus_than_the_box_has_are_refused_and_the_remedy_is_not(monkeypatch, words: str, total: str) -> None:
    with pytest.raises(UserError) as refused:
        ask(*words.split())
    removed, box = re.fullmatch(r"remove (.*): (--gpus \d) chooses them", refused.value.problem.remedy).groups()
    assert total in refused.value.problem.what and box in words
    ask(*re.sub(rf"({removed.replace(', ', '|')}) \d", "", words).split())
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    ask(*words.split())  # a cluster has other nodes


def test_a_line_that_was_removed_is_named() -> None:
    words = [word for word in read_script() if word != "--judge"]
    assert ask(script=words).list_differences()["--judge"] == ("False", "True", "script")


@pytest.mark.parametrize("variable", other_names.VARIABLES)
def test_a_variable_of_the_script_is_named_wins_over_tiny_and_is_not_needed_again(variable, monkeypatch, tmp_path):
    flag = other_names.VARIABLES[variable]
    with monkeypatch.context() as patch:
        patch.setenv(variable, "/a.py")
        asked = ask("--tiny", script=read_script(variables=((variable, "/a.py"),)))
        assert asked.list_differences()[f"--{flag}"][::2] == ("/a.py", variable)
    run = keep(tmp_path / "run", asked)
    assert ask("--resume", str(run)).values[flag] == "/a.py"
    assert ask("--resume", str(run), script=edit(**{flag: "/b.py"})).values[flag] == "/b.py"


def test_a_resume_needs_no_repetition_and_newer_sources_win(tmp_path: Path) -> None:
    script = edit(lora_alpha="7")
    run = keep(tmp_path / "run", ask("--tiny", "--steps", "3", "--seed", "5", "--lora_rank", "64", script=script))
    first = ask("--resume", str(run), script=script)
    assert first.tiny and first.values["max_steps"] == 3 and first.values["seed"] == 5
    assert first.values["lora_rank"] == 64, "also where the shipped value was given"
    assert first.values["lora_alpha"] == 7 and first.values["generate_max_len"] == 48
    newer = edit(lora_alpha="7", max_ckpt_num="9", save_steps="2")
    second = ask("--resume", str(run), "--save_steps", "1", script=newer)
    assert (second.values["max_ckpt_num"], second.values["save_steps"]) == (9, 1)
    assert second.sources["seed"] == f"{parser.KEPT}{parser.COMMAND_LINE}"
    keep(run, second)
    alone = Asked({})
    fill(alone, ["--resume", str(run)], lambda folder: run_dir.read_asked(Path(folder)))  # a restart after a crash
    assert alone.values == second.values and alone.script == newer
    assert ask("--resume", str(run), script=newer).sources["seed"].count(parser.KEPT) == 1


def test_lines_of_another_script_do_not_count_at_a_resume(tmp_path: Path) -> None:
    """A copy's run lost its learning rate when train_grpo.sh resumed it, as the printed command said."""
    copy, text = tmp_path / "my_task.sh", (ROOT / "train_grpo.sh").read_text()
    text = re.sub("^checkout=.*", f"checkout={ROOT}", text, flags=re.MULTILINE)
    copy.write_text(text.replace("--actor_learning_rate 1e-5", "--actor_learning_rate 7e-5"))
    run = keep(tmp_path / "run", ask("--tiny", script=read_script(copy)))
    resumed = ask("--resume", str(run), "--seed", "7")
    assert resumed.values["actor_learning_rate"] == 7e-5 and resumed.values["seed"] == 7
    assert "train_grpo.sh" in resumed.describe()[0] and resumed.script == read_script(copy)
    copy.write_text(text.replace("--actor_learning_rate 1e-5", "--actor_learning_rate 6e-5"))
    read_script.cache_clear()
    assert ask("--resume", str(run), script=read_script(copy)).values["actor_learning_rate"] == 6e-5
    assert f"{copy} --resume" in describe_continuation(run, tmp_path)


def test_a_box_that_is_repeated_at_a_resume_undoes_nothing(tmp_path: Path) -> None:
    run = keep(tmp_path / "run", ask("--tiny", "--gpus", "2", "--save_steps", "1"))
    for words in ([], ["--tiny"], ["--tiny", "--gpus", "2"]):
        assert ask("--resume", str(run), *words).values["save_steps"] == 1
    other = ask("--resume", str(run), "--gpus", "4").values
    assert other["vllm_tensor_parallel_size"] == 2 and other["actor_num_gpus_per_node"] == 2


def test_the_command_of_a_run_is_whole_and_starts_it_again(tmp_path: Path) -> None:
    asked = ask("--tiny", "--no-judge", "--template_variables", '{"a": "it\'s # not $HOME"}', "--offload")
    config, launcher = resolve_run(asked, tmp_path), tmp_path / "launch.sh"
    launcher.write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    text = run_dir.make_script(asked, tmp_path, config)
    launcher.chmod(0o755)
    command = text.replace(str(ROOT / "scripts" / "launch.sh"), str(launcher))
    done = subprocess.run(["bash", "-c", command, "command.sh", "--seed", "7"], stdout=subprocess.PIPE, check=True)
    words = done.stdout.decode().split("\0")[1:-1]
    assert words[-2:] == ["--seed", "7"]
    again = ask(*words[:-2], script=[])
    assert again.tiny and resolve_run(again, tmp_path).given == config.given
    flags = {
        word.partition("=")[0].replace("no-", "") for word in shlex.split(text.replace("#", "")) if word[:2] == "--"
    }
    assert not {f"--{name}" for name in config.given} - flags - {"--max_steps"}, "all that the trainer gets"


def test_an_edited_command_of_a_run_counts_at_its_resume(tmp_path: Path) -> None:
    run = keep(tmp_path / "run", ask("--seed", "5"))
    (run / "command.sh").write_text((run / "command.sh").read_text().replace("--seed 5", "--seed 6  # and not 5"))
    assert ask("--resume", str(run)).values["seed"] == 6


def test_a_run_from_before_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"options": ["--tiny"], "changes": {}, "flags": {}}))
    with pytest.raises(UserError, match=f"{tmp_path}.*git checkout"):
        ask("--resume", str(tmp_path))
