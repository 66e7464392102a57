"""What differs between the supported versions of OpenRLHF, for tests."""

from grpo.launch.config import trainer_parser


def masked_correction() -> str:
    """The flag's name of the importance correction that drops whole rollouts."""
    (action,) = (one for one in trainer_parser()._actions if "--vllm_is_correction_type" in one.option_strings)
    assert action.choices
    (name,) = set(action.choices) - {"tis", "icepop"}
    return name
