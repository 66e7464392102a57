"""Messages in the words of train_grpo.sh."""

import pytest

from grpo.stack.variables import in_variables


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("add --pipeline, or use --partial_rollouts 0", "set PIPELINE=1, or set PARTIAL_ROLLOUTS=0"),
        (
            "use --top_p 1, or add --use_kl_loss --kl_estimator k3",
            "set TOP_P=1, or add --use_kl_loss --kl_estimator k3",
        ),
        ("add --init_kl_coef, for example 0.001", "set KL_COEF, for example 0.001"),
        ("--lora_rank was 8, now 16", "LORA_RANK was 8, now 16"),
        ("add --enable_prefix_caching", "add --enable_prefix_caching"),
    ],
)
def test_flags_become_the_variables_that_set_them(message: str, wanted: str) -> None:
    assert in_variables(message) == wanted
