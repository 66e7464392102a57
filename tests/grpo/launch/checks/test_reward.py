"""What a user reads if a reward of their own cannot work, before anything heavy starts."""

import json
import os

import pytest

from grpo.launch.checks import reward
from reward.reward_func import reward_func as our_reward_func
from tests.supervised import is_alive, wait_until

pytestmark = pytest.mark.usefixtures("ample_machine")


@pytest.fixture
def find_problems(setting, tmp_path, monkeypatch):
    """Returns the problems of a run whose REWARD are files with these texts."""

    def find_problems(*texts: str) -> list[str]:
        paths = [tmp_path / f"mine_{number}.py" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        monkeypatch.setenv("GRPO_REWARD_FILES", os.pathsep.join(map(str, paths)))
        return setting.find_problems()

    return find_problems


def make_function(body: str) -> str:
    return f"import time\ndef reward_func(queries, prompts, labels):\n    {body}\n"


PRINTING = "import threading, time\nprint('{')\n" + make_function(
    "threading.Thread(target=time.sleep, args=(600,)).start(); print('x'); return 1.0"
)
CHANGING = """
from reward.reward_func import reward_func as correctness
def reward_func(queries, prompts, labels):
    result = correctness(queries, prompts, labels)
    return {**result, 'rewards': result['rewards'] - 0.5}
"""


@pytest.mark.parametrize(
    "texts",
    [
        ["def reward_func(prompts, completions, answers): return float('{1}' in prompts[0])"],
        [make_function("return [float(len(q)) for q in queries]"), make_function("return 0.5")],
        [PRINTING],
        [CHANGING],
    ],
)
def test_a_working_reward_is_no_problem(find_problems, texts):
    assert find_problems(*texts) == []


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("def reward_func(:\n", "has a syntax error: invalid syntax", "correct the file"),
        ("import missing_module_of_mine\n", "No module named 'missing_module_of_mine' (", "correct the file"),
        ("def reward(q, p, l): return 1\n", "has no function reward_func", "docs/own-reward.md"),
        (
            "def reward_func(completions, **kwargs): return 1\n",
            "has reward_func(completions, **kwargs), which is not how it is called",
            "define reward_func(queries, prompts, labels)",
        ),
        (
            "def reward_func(prompts, completions, answer): return [float(answer[0] in c) for c in completions]",
            "has reward_func(prompts, completions, answer), the arguments of another trainer",
            "define reward_func(queries, prompts, labels)",
        ),
        (
            "def reward_func(data_source, solution_str, ground_truth, extra_info=None): return solution_str.strip()",
            "ground_truth, extra_info=None), the arguments of another trainer",
            "define reward_func(queries, prompts, labels)",
        ),
        (make_function("raise ValueError('no gold')"), "ValueError: no gold (", "correct the file"),
        (make_function("return None"), "the return value is None", "return a number, a list"),
        (make_function("return [1.0, 2.0]"), "has 2 values for 1 rollout", "return a number, a list"),
        (make_function("return [None]"), "no reward (None or NaN)", "return a number"),
        (make_function("return float('inf')"), "returns the reward inf", "finite"),
        (make_function("import os; os._exit(7)"), "ended its process with code 7", "correct the file"),
        (
            make_function("return {'rewards': 1, 'extra_logs': {'kl': 1}}"),
            "logs 'kl', which is a metric",
            "another name",
        ),
    ],
)
def test_each_fault_is_named_with_its_remedy(find_problems, text, what, remedy):
    [problem] = find_problems(text)
    assert problem.startswith("REWARD: ") and "mine_0.py" in problem
    assert what in problem and remedy in problem.splitlines()[1]


SHARP = make_function("return float('{7}' in queries[0])")


@pytest.mark.parametrize(
    ("texts", "weights", "paid"),
    [
        ([SHARP], "", "pays 1 for the right answer to the first line of TRAIN_DATA, 0 for a wrong one"),
        ([make_function("return -float('{7}' in queries[0])")], "", "pays -1 for the right answer"),
        ([make_function("return float(queries[0].endswith('7'))")], "", "pays 0 for the right answer"),
        ([SHARP, make_function("return 0.25")], "2 1", "pays 2.25 for the right answer"),
        ([make_function("return [float('{7}' in queries[0]) or None]")], "", "no reward for a wrong one"),
    ],
)
def test_what_a_reward_pays_is_shown(setting, find_problems, tmp_path, monkeypatch, texts, weights, paid):
    (tmp_path / "train.jsonl").write_text('{"prompt": "3 + 4?", "label": "7"}\n' * 8)
    monkeypatch.setenv("GRPO_REWARD_WEIGHTS", weights)
    find_problems(*texts)
    _, line, *warning = reward.describe(setting.make_config())
    assert paid in line
    is_blind = "pays -1" in paid or "pays 0" in paid
    assert [text.startswith("WARNING: REWARD pays no more for a right answer") for text in warning] == [True] * is_blind


def test_a_label_that_only_the_function_reads_says_no_right_answer(setting, find_problems, tmp_path):
    label = json.dumps({"tests": ["assert f(1) == 2"]})
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "Write f.", "label": label}) + "\n")
    find_problems(make_function("return 0.0"))
    assert len(reward.describe(setting.make_config())) == 1


def test_a_function_that_fails_on_a_wrong_answer_is_refused(find_problems):
    [problem] = find_problems(make_function("return 1.0 if '-8675309' not in queries[0] else {}['reward']"))
    assert "fails on a wrong answer to the first line of the data: KeyError" in problem


def test_the_place_in_the_file_is_named(find_problems, tmp_path):
    [problem] = find_problems("def helper(x):\n    return int(x)\n\n" + make_function("return helper('a b')"))
    assert f"({tmp_path / 'mine_0.py'}:2 in helper)" in problem and "ValueError: invalid literal" in problem
    [problem] = find_problems("\n\nx = = 3\n")
    assert f"({tmp_path / 'mine_0.py'}:3)" in problem


def test_an_endless_loop_ends_at_the_deadline_with_what_it_started(tmp_path):
    path, child = tmp_path / "loop.py", tmp_path / "child"
    path.write_text(
        "import subprocess, time\n"
        f"open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        + make_function("time.sleep(600)")
    )
    result = reward.try_file(path, {"query": "", "prompt": "", "label": ""}, deadline=5.0)
    assert result["error"] == "did not return within 5 s"
    wait_until(lambda: not is_alive(int(child.read_text())), "what it started lives")


def test_it_is_called_as_in_the_run_on_the_first_line(setting, tmp_path):
    """Checked with our own grader: it reads the answer that the response boxes."""
    label = json.dumps({"answer": "42", "split": "train"})
    rows = [{"prompt": "6 * 7?", "label": label}, {"prompt": "1 + 1?", "label": "2"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sample = reward.read_first_sample(setting.make_config())
    assert sample["label"] == label and sample["query"].startswith(sample["prompt"]) and "6 * 7?" in sample["prompt"]
    result = our_reward_func([sample["query"]], [sample["prompt"]], [sample["label"]])
    assert result["scores"] == 1.0


def test_a_file_that_is_missing_is_named(find_problems, setting, monkeypatch):
    monkeypatch.setenv("GRPO_REWARD_FILES", "/none.py")
    [problem] = setting.find_problems()
    assert "/none.py does not exist" in problem
