"""The reward that engines load if REWARD names the user's own files, loaded by its path as OpenRLHF does."""

import importlib.util
import logging
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from reward import user_files
from reward.dry_run import call_once
from reward.settings import SettingsError
from reward.user_files import ReturnError, read

CALL = (["<p>12"], ["<p>"], ["7"])


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads the combination of files with these texts."""

    def load(weights: str = "", **texts: str):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.setenv("GRPO_REWARD_FILES", os.pathsep.join(str(tmp_path / f"{name}.py") for name in texts))
        monkeypatch.setenv("GRPO_REWARD_WEIGHTS", weights)
        path = os.path.join(os.path.dirname(user_files.__file__), "user_reward.py")
        spec = importlib.util.spec_from_file_location("reward_func", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.reward_func

    return load


def make_reward_code(value: str) -> str:
    return f"def reward_func(queries, prompts, labels):\n    return {value}\n"


def test_one_function_gives_reward_score_and_its_logs(load):
    value = '{"rewards": [0.5], "scores": [1.0], "extra_logs": {"words": 3}}'
    result = load(mine=make_reward_code(value))(*CALL)
    assert (result["rewards"], result["scores"]) == (0.5, 1.0)
    assert result["extra_logs"].pop("reward_seconds") >= 0
    assert result["extra_logs"] == {"reward_error": 0.0, "words": 3.0}


def test_several_functions_are_a_weighted_sum_with_a_metric_each(load):
    b = make_reward_code('{"rewards": len(queries[0]) + 0.5, "extra_logs": {"words": 3}}')
    result = load("1 0.5", a=make_reward_code("[float(labels[0])]"), b=b)(*CALL)
    assert result["rewards"] == result["scores"] == 7 + 0.5 * 5.5
    logs = result["extra_logs"]
    assert (logs["reward.a"], logs["reward.b"], logs["b.words"], logs["reward_error"]) == (7.0, 5.5, 3.0, 0.0)
    result = load("2", c=make_reward_code("[len(query) for query in queries]"))(["a", "bc"], ["", ""], ["1", "2"])
    assert result["rewards"] == [2.0, 4.0] and result["extra_logs"]["reward_error"] == [0.0, 0.0]


@pytest.mark.parametrize("body", ["1 / 0", "'high'", "exit(3)", "None"])
def test_a_failure_is_no_reward_and_its_first_traceback_is_logged(load, caplog, body):
    reward_func = load(good=make_reward_code("1.0"), bad=make_reward_code(body))
    with caplog.at_level(logging.ERROR):
        first, second = reward_func(*CALL), reward_func(*CALL)
    for result in (first, second):
        assert math.isnan(result["rewards"]) and math.isnan(result["scores"])
        assert (result["extra_logs"]["reward_error"], result["extra_logs"]["reward.good"]) == (1.0, 1.0)
    [record] = caplog.records
    assert record.exc_info and "the reward bad " in record.getMessage()


def test_infinite_rewards_are_none(load):
    result = load(a=make_reward_code("float('inf')"), b=make_reward_code("float('-inf')"))(*CALL)
    assert not math.isfinite(result["rewards"]) and result["extra_logs"]["reward_error"] == 1.0


def test_a_function_may_import_a_module_beside_it(load, tmp_path):
    (tmp_path / "my_helper_of_rewards.py").write_text("WORTH = 0.25\n")
    reward_func = load(mine="from my_helper_of_rewards import WORTH\n" + make_reward_code("WORTH"))
    assert reward_func(*CALL)["rewards"] == 0.25


def test_a_module_beside_it_comes_before_a_package_of_ours(load, tmp_path):
    (tmp_path / "data.py").write_text("WORTH = 0.25\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "__init__.py").write_text("")
    (tmp_path / "scripts" / "more.py").write_text("from data import WORTH\nTWICE = 2 * WORTH\n")
    (tmp_path / "eval").mkdir()  # of data files
    code = "from scripts.more import TWICE\nfrom eval.compare import compare_evaluations\n" + make_reward_code("TWICE")
    data = importlib.import_module("data.sources")
    assert load(mine=code)(*CALL)["rewards"] == 0.5
    assert importlib.import_module("data.sources") is data and "scripts.more" not in sys.modules
    assert sys.path[0] != str(tmp_path) and sys.path[-1] == str(tmp_path)


_LATE = """
def reward_func(queries, prompts, labels):
    import scripts.more.deep as deep, late_helper
    from reward import helper_of_mine
    return deep.WORTH + late_helper.find() + helper_of_mine.WORTH
"""


def test_an_import_when_it_is_called_finds_the_module_beside_it_too(load, tmp_path):
    """In threads, from a helper, and beside our own imports of the same names."""
    files = {
        "scripts/more/deep.py": "from ..other import WORTH",
        "scripts/other.py": "WORTH = 1",
        "scripts/__init__.py": "",
        "reward/helper_of_mine.py": "WORTH = 2",  # a package without __init__.py
        "late_helper.py": "def find():\n    import data\n    return data.WORTH",
        "data.py": "WORTH = 4",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    reward_func = load(mine="import reward.helper_of_mine\n" + _LATE)
    with ThreadPoolExecutor(8) as threads:
        paid = threads.map(lambda _: reward_func(*CALL)["rewards"], range(32))
        ours = threads.map(lambda _: importlib.import_module("scripts.watch").__name__, range(32))
    assert set(paid) == {7.0} and set(ours) == {"scripts.watch"}


def test_each_of_two_files_finds_the_helper_beside_itself(load, tmp_path):
    for name, worth in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper_of_both.py").write_text(f"WORTH = {worth}\n")
    code = "from helper_of_both import WORTH\n" + make_reward_code("WORTH")
    (tmp_path / "a" / "one.py").write_text(code)
    (tmp_path / "b" / "two.py").write_text(code)
    assert [user_files.load(tmp_path / name)(*CALL) for name in ("a/one.py", "b/two.py")] == [1, 2]


def test_a_module_beside_it_comes_before_what_is_installed_in_a_folder_below(load, tmp_path, monkeypatch):
    """Such as a package of an environment, or ours if the checkout lies there."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "helper_of_two.py").write_text("WORTH = 1\n")
    (tmp_path / "helper_of_two.py").write_text("WORTH = 0.5\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    installed = importlib.import_module("helper_of_two")
    assert load(mine="from helper_of_two import WORTH\n" + make_reward_code("WORTH"))(*CALL)["rewards"] == 0.5
    assert importlib.import_module("helper_of_two") is installed


def test_a_file_of_a_package_s_name_may_import_that_package(load):
    code = "from reward.answers import grade\n" + make_reward_code("late() + float(grade('\\\\boxed{7}', '7').correct)")
    late = "def late():\n    import reward.answers\n    return 1\n"
    assert load(reward=code + late)(*CALL)["rewards"] == 2.0
    other_form = late.replace("import reward.answers", "from reward import answers")
    assert load("1 0", reward=code + other_form, other=code + late)(*CALL)["rewards"] == 2.0


def test_the_remedy_names_the_folder_that_hides_a_package_of_ours(tmp_path):
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "helper_of_mine.py").write_text("")
    (tmp_path / "mine.py").write_text("from reward.answers import grade\nfrom reward import helper_of_mine\n")
    assert call_once(tmp_path / "mine.py", None)["error"] == "has no function reward_func"
    (tmp_path / "reward" / "__init__.py").write_text("")
    refused = call_once(tmp_path / "mine.py", None)
    assert "reward.answers" in refused["error"] and str(tmp_path / "reward") in refused["remedy"]


def test_an_edit_of_the_same_second_and_size_counts(tmp_path):
    """Python would take the .pyc of the first text for that of the second."""
    file, rewards = tmp_path / "mine.py", []
    for value in ("0.25", "0.75"):
        file.write_text(make_reward_code(value))
        os.utime(file, (1e9, 1e9))
        rewards.append(user_files.load(file)(*CALL))
    assert rewards == [0.25, 0.75]


def test_a_file_of_impossible_size_is_not_read(tmp_path):
    """Environments are loaded in this way, too."""
    file = tmp_path / "sparse.py"
    file.touch()
    os.truncate(file, 2**40)
    for look in (lambda: user_files.digests({"GRPO_REWARD_FILES": str(file)}), lambda: user_files.load(file)):
        with pytest.raises(OSError, match=r"larger than .*sparse\.py"):
            look()


@pytest.mark.parametrize(
    ("files", "weights", "message"),
    [
        ("/a/x.py:/b/x.py", "", "/a/x.py and /b/x.py"), ("/a/x.py:/a/x.py", "", "/a/x.py"),
        ("/a/x.py:/a/y.py", "1", "--reward_weights"), ("/a/x.py", "nan", "'nan'"), ("/a/x.py", "heavy", "'heavy'"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(files, weights, message):
    with pytest.raises(SettingsError, match=message):
        user_files.from_environment({"GRPO_REWARD_FILES": files, "GRPO_REWARD_WEIGHTS": weights})


@pytest.mark.parametrize(
    "value",
    [
        0.5, np.float32(0.5), torch.tensor(0.5), [0.5], (0.5,), torch.tensor([0.5]), np.array([0.5]),
        [torch.tensor(0.5)], {"rewards": 0.5}, {"rewards": [0.5], "scores": None, "extra_logs": None},
        {"rewards": torch.tensor([0.5]), "scores": torch.tensor([0.5]), "extra_logs": {}},
    ],
    ids=str,
)  # fmt: skip
def test_every_accepted_form_is_one_reward(value):
    returned = read(value, 1)
    assert (returned.rewards, returned.scores, returned.logs) == ([0.5], [0.5], [{}])


def test_a_dictionary_of_several_rollouts_keeps_scores_and_logs_and_none_is_a_missing_reward():
    value = {"rewards": [None, True], "scores": torch.tensor([0.5, 0]), "extra_logs": {"length": torch.tensor([3, 4])}}
    returned = read(value, 2)
    assert math.isnan(returned.rewards[0]) and returned.rewards[1] == 1.0 and returned.scores == [0.5, 0.0]
    assert returned.logs == [{"length": 3.0}, {"length": 4.0}]


@pytest.mark.parametrize(
    ("value", "count", "message"),
    [
        (None, 1, "None"), ("1.0", 1, "'1.0', of type str"), ([0.1, 0.2], 1, "2 values for 1 rollout"),
        ([], 1, "0 values for 1 rollout"), (0.5, 2, "2 rollouts"), (["a"], 1, "'a', of type str"),
        ([[0.5]], 1, "\\[0.5\\], of type list"), ({"reward": 1.0}, 1, "'reward'"), ({"scores": 1.0}, 1, "'rewards'"),
        ({"rewards": 1.0, "extra_logs": [1]}, 1, "'extra_logs'"),
        ({"rewards": 1.0, "extra_logs": {"why": "short"}}, 1, "'why'"),
    ],
)  # fmt: skip
def test_anything_else_is_named(value, count, message):
    with pytest.raises(ReturnError, match=message):
        read(value, count)
