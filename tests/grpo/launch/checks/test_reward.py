"""What a user reads if a reward of their own cannot work, before anything heavy starts."""

import json
import os

import pytest

from grpo.launch.checks import reward
from tests.supervised import is_alive, wait_until


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


TIMED = "from math_verify import parse\n" + make_function("return [float(bool(parse(label))) for label in labels]")
PRINTING = "import threading, time\nprint('{')\n" + make_function(
    "threading.Thread(target=time.sleep, args=(600,)).start(); print('x'); return 1.0"
)


def test_a_working_reward_is_no_problem(find_problems):
    ours = "from reward.reward_func import reward_func\n"
    trls = "def reward_func(prompts, completions, answers): return float('{1}' in prompts[0])"
    assert find_problems(PRINTING, ours, trls, make_function("return [float(len(q)) for q in queries]")) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("\n\nx = = 3\n", "mine_0.py:3)"),
        ("import missing_module_of_mine\n", "missing_module_of_mine"),
        ("def reward(q, p, l): return 1\n", "no function reward_func"),
        ("def reward_func(completions, **kwargs): return 1\n", "define reward_func(queries, prompts, labels)"),
        (
            "def reward_func(data_source, solution_str, ground_truth, extra_info=None): return solution_str.strip()",
            "the arguments of another trainer",
        ),
        ("def helper(x):\n    return int(x)\n\n" + make_function("return helper('a b')"), "mine_0.py:2 in helper)"),
        (make_function("return None"), "None"),
        (make_function("return [1.0, 2.0]"), "2 values"),
        (make_function("return float('inf')"), "inf"),
        (make_function("import os; os._exit(7)"), "code 7"),
        (make_function("return {'rewards': 1, 'extra_logs': {'kl': 1}}"), "'kl'"),
        (make_function("return 1.0 if '{7}' not in queries[0] else {}['reward']"), "KeyError"),
        (TIMED, "parsing_timeout=None"),  # its timer works in the main thread alone, where no run calls it
    ],
)
def test_each_fault_is_named_with_the_file(find_problems, text, names):
    [problem] = find_problems(text)
    assert problem.startswith("REWARD: ") and "mine_0.py" in problem and "->" in problem and names in problem


SHARP = make_function("return float('{7}' in queries[0])")


@pytest.mark.parametrize(
    ("texts", "weights", "paid"),
    [
        ([SHARP], "", "\\boxed{7} 1, 7 0, \\boxed{3} 0"),
        ([make_function("return -float('{7}' in queries[0])")], "", "\\boxed{7} -1, 7 0,"),
        ([make_function("return 0.5")], "", "\\boxed{7} 0.5, 7 0.5, \\boxed{3} 0.5"),
        ([SHARP, make_function("return 0.25")], "2 1", "\\boxed{7} 2.25, 7 0.25"),
        ([make_function("return [float('{7}' in queries[0]) or None]")], "", "\\boxed{3} nan"),
        ([make_function("return float(queries[0].endswith('>' + labels[0] + '<|return|>'))")], "", "{7} 0, 7 1, "),
    ],
)
def test_what_a_reward_pays_is_shown(setting, find_problems, tmp_path, monkeypatch, texts, weights, paid):
    (tmp_path / "train.jsonl").write_text('{"prompt": "3 + 4?", "label": "7"}\n' * 8)
    monkeypatch.setenv("GRPO_REWARD_WEIGHTS", weights)
    find_problems(*texts)
    _, line, *warning = reward.describe(setting.make_config())
    assert paid in line
    assert "label of TRAIN_DATA is '7'" in line
    assert len(warning) == ("-1, " in paid or "0.5, " in paid)


def test_what_cannot_be_tried_says_no_right_answer(setting, find_problems, tmp_path, monkeypatch):
    label = json.dumps({"tests": ["assert f(1) == 2"]})  # which only the function reads
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "Write f.", "label": label}) + "\n")
    find_problems(make_function("return 0.0"))
    assert len(reward.describe(setting.make_config())) == 1
    monkeypatch.setenv("GRPO_REWARD_FILES", "/none.py")
    assert any(problem.startswith("REWARD: /none.py") for problem in setting.find_problems())


def test_a_file_of_any_size_is_not_read_into_memory(setting, monkeypatch, tmp_path):
    (file := tmp_path / "large.py").touch()
    os.truncate(file, 1 << 40)
    monkeypatch.setenv("GRPO_REWARD_FILES", str(file))
    with pytest.raises(OSError, match="larger than 2 GiB"):
        setting.find_problems()


def test_an_endless_loop_ends_at_the_deadline_with_what_it_started(tmp_path):
    path, child = tmp_path / "loop.py", tmp_path / "child"
    path.write_text(
        "import subprocess, time\n"
        f"open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        + make_function("time.sleep(600)")
    )
    result = reward.try_file(path, {"query": "", "prompt": "", "label": ""}, deadline=5.0)
    assert "did not return" in result["error"]
    wait_until(lambda: not is_alive(int(child.read_text())), "what it started lives")
