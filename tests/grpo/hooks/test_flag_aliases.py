"""OpenRLHF's dotted flags under the names of 0.9.3."""

import argparse

import pytest

from grpo.flags.upstream import trainer_parser
from grpo.hooks import flag_aliases


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    """A parser of dotted flags, with a few as OpenRLHF 0.11.2 has them."""
    made = argparse.ArgumentParser()
    made.add_argument("--local_rank", type=int, default=-1)
    made.add_argument("--ds.lora.rank", type=int, default=0)
    made.add_argument("--train.agent_func_path", default=None)
    made.add_argument("--actor.muon.lr", type=float, default=0.02)
    made.add_argument("--data.max_len", type=int, default=2048)
    made.add_argument("--rollout.max_new_tokens", type=int, default=None)
    made.add_argument("--algo.advantage.estimator", choices=["gae", "dr_grpo", "flash_reinforce"], default="gae")
    flag_aliases.rename_flags(made)
    return made


@pytest.mark.parametrize("option", ["--lora_rank", "--ds.lora.rank"])
def test_both_names_of_a_flag_set_the_same_value(parser, option):
    assert parser.parse_args([option, "8"]).lora_rank == 8


def test_a_flag_without_a_name_keeps_its_default(parser, capsys):
    args = parser.parse_args([])
    assert flag_aliases.in_sections(args).actor.muon.lr == 0.02
    with pytest.raises(SystemExit):
        parser.parse_args(["--actor.muon.lr", "1"])
    assert "unrecognized" in capsys.readouterr().err


def test_an_estimator_that_we_lack_is_no_choice(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["--advantage_estimator", "flash_reinforce"])
    assert "invalid choice" in capsys.readouterr().err


def test_prompt_and_response_have_limits_of_their_own(parser):
    words = ["--prompt_max_len", "100", "--generate_max_len", "20"]
    assert flag_aliases.in_sections(parser.parse_args(words)).data.max_len == 120
    assert flag_aliases.in_sections(parser.parse_args([*words, "--max_len", "90"])).data.max_len == 90


def test_sections_read_and_write_the_arguments(parser):
    args = flag_aliases.in_sections(parser.parse_args(["--lora_rank", "8"]))
    assert args.ds.lora.rank == args.lora_rank == 8
    args.train.agent_func_path = "agent.py"
    assert args.agent_func_path == "agent.py"
    args.lora_rank = 4
    assert args.ds.lora.rank == 4
    assert getattr(args.ds, "zpg", 1) == 1 and not hasattr(args, "optim")


def test_the_trainer_has_every_flag_by_this_name():
    assert set(flag_aliases.NAMES.values()) <= vars(trainer_parser().parse_args([])).keys()
