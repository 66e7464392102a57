"""Variables whose names are close to those of settings are refused."""

import re
import site
from pathlib import Path

import pytest

from grpo.settings import misspelt
from grpo.settings.table import SETTINGS

READ = re.compile(r"""(?:environ(?:\.get)?[\[(]|getenv\()\s*["']([A-Z][A-Z_0-9]+)["']""")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LEARNIG_RATE", "LEARNING_RATE"), ("LORA_RNK", "LORA_RANK"), ("TEMPRATURE", "TEMPERATURE"),
        ("EVALSTEPS", "EVAL_STEPS"), ("N_SAMPLES_PER_PROMT", "N_SAMPLES_PER_PROMPT"), ("KL_COEFF", "KL_COEF"),
        ("ROLLOUT_BATCHSIZE", "ROLLOUT_BATCH_SIZE"), ("GENERATE_MAX_LENGTH", "GENERATE_MAX_LEN"),
        ("TRAIN_BATCH", "TRAIN_BATCH_SIZE"), ("LR_WARMUP", "LR_WARMUP_RATIO"), ("learning_rate", "LEARNING_RATE"),
        ("JUGDE", "JUDGE"), ("REWRAD", "REWARD"), ("MODLE", "MODEL"),
    ],
)  # fmt: skip
def test_a_misspelt_variable_is_refused_with_the_right_name(name, meant):
    [problem] = misspelt.find({name: "1", "LEARNING_RATE": "2", "HOME": "/root"})
    assert problem.what.startswith(f"{name} ") and f"did you mean {meant}?" in problem.remedy


def test_no_variable_of_another_program_is_refused():
    """All variables that the pinned packages read, and some of shells and schedulers."""
    packages = Path(site.getsitepackages()[0])
    folders = ("ray", "vllm", "torch", "transformers", "deepspeed", "peft", "datasets", "huggingface_hub", "openai")
    files = [file for folder in folders for file in (packages / folder).rglob("*.py")]
    names = {name for file in files for name in READ.findall(file.read_text(encoding="utf-8", errors="replace"))}
    assert len(names) > 700
    names |= {"LANGUAGE", "EDITOR", "SHELL", "TERM", "SEEDS_DIR", "SLURM_NTASKS", "PBS_JOBNAME", "GRPO_JUDGE_RPM"}
    assert list(misspelt.find(dict.fromkeys(names, ""))) == []
    assert misspelt.warnings(dict.fromkeys(names, "")) == []


def test_names_of_other_trainers_are_a_warning():
    given = {"NUM_GENERATIONS": "8", "INIT_KL_COEF": "0", "N_SAMPLES_PER_PROMPT": "8", "SEED": "1", "HOME": "/root"}
    assert list(misspelt.find(given)) == []
    assert misspelt.warnings(given) == [
        "WARNING: INIT_KL_COEF has no effect: the setting of train_grpo.sh is KL_COEF",
        "WARNING: NUM_GENERATIONS has no effect: the setting of train_grpo.sh is N_SAMPLES_PER_PROMPT",
    ]
    assert set(misspelt._OTHERS.values()) <= SETTINGS.keys()
