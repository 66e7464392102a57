"""The last line of a run: how to evaluate what it trained."""

import shlex

from eval import evaluate
from grpo.launch.evaluate_command import evaluate_command
from grpo.run.measure import OUR_REWARD


def options(setting, adapter, **changes):
    """What eval.evaluate reads from the command."""
    words = shlex.split(evaluate_command(setting.config(remote_rm_url=OUR_REWARD, **changes), adapter))
    assert words[:3] == ["python", "-m", "eval.evaluate"]
    return evaluate.parser().parse_args(words[3:])


def test_it_names_the_folder_of_the_engines_model(setting, tmp_path) -> None:
    read = options(setting, tmp_path / "final", engine_model=setting.flags["pretrain"], eval_temperature=0.5)
    assert read.model == str(setting.flags["pretrain"]) and read.adapter == tmp_path / "final"
    assert (str(read.data), read.max_tokens, read.temperature) == (str(setting.flags["eval_dataset"]), 32, 0.5)
    assert read.tensor_parallel == 2 and read.n == 8 and read.out.name == "run"


def test_it_has_the_budgets_of_the_run_and_no_adapter_that_was_not_saved(setting) -> None:
    read = options(setting, None, thinking_budget=10, answer_budget=8, enable_prefix_caching=True)
    assert (read.thinking_budget, read.answer_budget, read.thinking_delimiter) == (10, 8, "harmony")
    assert read.adapter is None


def test_there_is_none_for_a_reward_of_the_users_own_or_without_held_out_problems(setting) -> None:
    assert evaluate_command(setting.config(), None) is None
    assert evaluate_command(setting.config(remote_rm_url=OUR_REWARD, eval_dataset=None), None) is None
