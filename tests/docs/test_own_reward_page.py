"""The example of docs/own-reward.md works as the page says."""

import re
from pathlib import Path

from grpo.launch.checks.reward import try_file

PAGE = Path(__file__).parents[2] / "docs" / "own-reward.md"


def test_the_example_rewards_right_answers_and_no_others(tmp_path):
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine.py").write_text(example)
    prompt = "<|start|>user<|message|>\\boxed{7}?<|end|><|start|>assistant"
    for response, reward in (("It is 42.<|return|>", 1.0), ("42 or \\boxed{43}<|return|>", 0.0), ("No.", 0.0)):
        sample = {"query": prompt + response, "prompt": prompt, "label": "42"}
        assert try_file(tmp_path / "mine.py", sample)["reward"] == reward
