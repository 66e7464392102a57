"""Names: every flag of ours is read and documented, and unknown names are answered with the flag they mean."""

import re

import pytest

from grpo.flags import other_names, ours, parser
from grpo.flags.__main__ import check, make_page
from grpo.flags.parser import make_parser
from grpo.flags.upstream import parse_given, trainer_parser
from grpo.stack.problem import UserError
from tests.docs.pages import get_page
from tests.grpo.launch.recipe import ROOT, launch

OTHERS = other_names.TRL | other_names.VERL


def answer(word: str) -> str:
    with pytest.raises(UserError) as error:
        parse_given(make_parser(), [word, "1"])
    return str(error.value)


def test_every_flag_of_ours_is_read_and_in_the_help() -> None:
    folders = ("grpo", "reward", "scripts")
    code = "\n".join(file.read_text() for folder in folders for file in (ROOT / folder).rglob("*.py"))
    code = code.replace((ROOT / "grpo" / "flags" / "ours.py").read_text(), "")
    text = make_parser().format_help()
    assert len((*ours.OURS, *ours.EXPORTED, *parser.OPTIONS)) <= 65
    for flag in (*ours.OURS, *ours.EXPORTED):
        name = "max_steps" if flag == "steps" else flag
        assert re.search(rf'\.{name}\b|"{name}"|"{name.upper()}"', code), f"nothing reads --{flag}"
        assert f"--{flag}" in text and f"`--{flag}`" in make_page()


def test_the_page_is_generated() -> None:
    assert (ROOT / "docs" / "flags.md").read_text() == make_page(), "run python -m grpo.flags --page >docs/flags.md"


def test_the_page_of_other_names_has_each_name_in_the_row_of_its_flag() -> None:
    tables = {table[0][0]: table[1:] for table in get_page("docs/coming-from.md").tables}
    for column, names in ((1, other_names.TRL), (2, other_names.VERL)):
        assert {name: row[0] for row in tables["Here"] for name in re.findall(r"`(.+?)`", row[column])} == names
    rows = {answer: set(re.findall(r"`--(.+?)[ `]", flags)) for flags, answer in tables["Flag"]}
    assert rows["Refused; the message says why."] == other_names.GONE.keys()
    shipped = parser.shipped_values()
    assert rows["The defaults here."] == {name for name, it in ours.DEFAULTS.items() if it is not None} - shipped.keys()


@pytest.mark.parametrize("name", OTHERS)
def test_names_of_other_trainers_are_answered_with_flags_that_exist(name: str) -> None:
    said = answer(f"--{name}")
    named = re.findall(r"--[a-z][\w-]*", said.partition("use ")[2])
    assert named and set(named) <= make_parser()._option_string_actions.keys()
    if "." in name:
        assert named[0] in answer(f"actor_rollout_ref.{name}=1")


@pytest.mark.parametrize("name", other_names.GONE)
def test_a_flag_that_nothing_reads_is_refused_with_its_reason(name: str) -> None:
    assert other_names.GONE[name] in answer(f"--{name}")
    assert name in vars(trainer_parser().parse_args([])), "OpenRLHF's own code reads its default"


def test_other_wrong_words_are_refused() -> None:
    for word, said in (
        *(("--lora_rnk", "did you mean --lora_rank?"), ("--frobnicate", "--help"), ("--use_wandbb", "--use_wandb")),
        *(("LORA_RANK=3", "does not belong to a flag"), ("--run_dir", "use --run-dir DIR")),
        *(("--learning_rate=1", "use --actor_learning_rate"), ("3", "does not belong to a flag")),
    ):
        assert said in answer(word)


@pytest.mark.parametrize("mode", ["--dry-run", "--plan", "--check"])
def test_a_variable_of_another_trainer_is_refused_like_its_flag(mode: str) -> None:
    done = launch("--tiny", mode, environ={"BETA": "0.1"})
    assert done.returncode == 2 and "BETA" in done.stderr and "--init_kl_coef" in done.stderr


def test_without_openrlhf_the_words_are_not_checked(monkeypatch, capsys) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert check(["--no_such_flag"]) == check(["--help"]) == 0
    assert "docs/flags.md" in capsys.readouterr().out


def test_keys_are_refused_on_a_command_line(monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "wandb-0123456789")
    for words in (["--use_wandb", "0123"], ["--use_wandb=0123"], ["--wandb_org", "wandb-0123456789"]):
        done = launch("--dry-run", *words)
        assert done.returncode == 2 and "WANDB_API_KEY" in done.stderr and "0123" not in done.stderr + done.stdout
