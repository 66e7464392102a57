"""A trainer that is saved and resumed goes on as one that was not, with as many ranks."""

import json

import pytest
import torch
from safetensors.torch import load_file

from grpo.checkpoint import adapter_files
from grpo.lora import expert_form

SCRIPT = "checkpoint/trainer_ranks.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def trained_folder(checkpoint, run_ranks, folder):
    """Four steps on two ranks, each saved; one of the parameters is small enough to stay whole on every rank."""
    if not (folder / "losses_0.json").exists():
        run_ranks(2, checkpoint, folder, 4, "", 600, 4, "zero3", script=SCRIPT)
    return folder


def test_a_resumed_trainer_gives_the_same_numbers(trained_folder, checkpoint, run_ranks, tmp_path):
    """One whose run started from an adapter has a reference of its own, which does not move."""
    start = trained_folder / "step_1" / "adapter"
    run_ranks(2, checkpoint, tmp_path, 4, trained_folder / "step_2", 600, 4, "zero3", start, script=SCRIPT)
    for rank in (0, 1):
        whole = json.loads((trained_folder / f"losses_{rank}.json").read_text())
        resumed = json.loads((tmp_path / f"losses_{rank}.json").read_text())
        for step, expected in zip(resumed, whole[2:], strict=True):
            assert step == pytest.approx(expected, rel=1e-3)  # equal to the bit where kernels ignore alignment
            assert step[1:3] + step[4:] == expected[1:3] + expected[4:]  # learning rate, step and random numbers
    expected, actual = torch.load(trained_folder / "whole_4.pt"), torch.load(tmp_path / "whole_4.pt")
    assert expected.keys() == actual.keys()
    before = torch.load(trained_folder / "whole_3.pt")
    for name in expected:
        stepped = (expected[name] - before[name]).norm()
        assert stepped > 0, name
        assert (actual[name] - expected[name]).norm() <= 0.05 * stepped, name


def test_a_whole_base_on_each_rank_gives_the_same_numbers(trained_folder, checkpoint, run_ranks, tmp_path):
    run_ranks(2, checkpoint, tmp_path, 4, "", 600, 4, "none", script=SCRIPT)
    for name in ("losses_0.json", "losses_1.json"):
        assert (tmp_path / name).read_text() == (trained_folder / name).read_text()
    for step in (1, 4):
        expected, actual = torch.load(trained_folder / f"whole_{step}.pt"), torch.load(tmp_path / f"whole_{step}.pt")
        assert expected.keys() == actual.keys() and all(torch.equal(actual[name], expected[name]) for name in expected)
    for file in (trained_folder / "step_4").rglob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / file.relative_to(trained_folder)).read_bytes()


def test_a_whole_base_resumes_from_a_sharded_one(trained_folder, checkpoint, run_ranks, tmp_path):
    start = trained_folder / "step_3" / "adapter"
    run_ranks(2, checkpoint, tmp_path, 2, trained_folder / "step_1", 0, 4, "none", start, script=SCRIPT)
    expected, actual = torch.load(trained_folder / "whole_1.pt"), torch.load(tmp_path / "loaded.pt")
    assert expected.keys() == actual.keys() and all(torch.equal(actual[name], expected[name]) for name in expected)


def test_only_trained_parameters_are_saved(trained_folder):
    step = trained_folder / "step_4"
    numbers = sum(t.numel() for name, t in torch.load(trained_folder / "whole_4.pt").items() if name.endswith("master"))
    size = sum(file.stat().st_size for file in (step / "trainer").iterdir())
    assert numbers * 12 <= size < numbers * 12 + 2 * 40_000  # and random states
    assert sorted(path.name for path in step.iterdir()) == ["adapter", "trainer"]


def test_an_experts_adapter_without_a_token_keeps_its_bits(trained_folder):
    start = load_file(trained_folder / "step_0" / "adapter" / adapter_files.WEIGHTS)
    state = torch.load(trained_folder / "whole_2.pt")
    counts = {True: 0, False: 0}
    for name in start:
        if ".experts." in name and ".lora_B." in name:  # in the first step, B is zero, and A has no gradient
            for half in (name.replace("lora_B", "lora_A"), name):
                master, bf16 = (state[f"{half} {kind}"] for kind in ("master", "bf16"))
                before = expert_form.from_file(half, start[half], master.shape)
                is_idle = ~state[f"{name} exp_avg_sq"].flatten(1).any(1)
                for expert, idle in enumerate(is_idle.tolist()):
                    counts[idle] += 1
                    assert torch.equal(bf16[expert], before[expert]) == idle
                    assert torch.equal(master[expert], before[expert].float()) == idle
    assert min(counts.values()) > 0, counts


@pytest.mark.parametrize(("ranks", "lora_rank", "names"), [(2, 8, "adapter"), (1, 4, "2 ranks")])
def test_the_state_of_another_adapter_or_of_more_ranks_is_refused(
    trained_folder, checkpoint, run_ranks, tmp_path, ranks, lora_rank, names
):
    with pytest.raises(AssertionError, match=names):
        run_ranks(ranks, checkpoint, tmp_path, 4, trained_folder / "step_2", 0, lora_rank, "zero3", script=SCRIPT)
