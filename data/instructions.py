r"""How a prompt asks for its answer. The tiny model has learned to answer problems with the general instruction."""

_GENERAL = "\n\nSolve the problem. Put the final answer in \\boxed{}."
# The text after the problem in the prompt, by data source.
INSTRUCTIONS = {
    "aime": "\n\nSolve the problem. The answer is an integer from 0 to 999; put it in \\boxed{}.",
    "math": _GENERAL,
    "synthetic": _GENERAL,
}


def add_instruction(text: str, datasource: str) -> str:
    """Return the user's message: the problem, and how to answer. Other data sources get the general instruction."""
    return text + INSTRUCTIONS.get(datasource, _GENERAL)


def strip_instruction(prompt: str) -> str:
    """Return the problem of a prompt, without white space at its ends: the reverse of :func:`add_instruction`."""
    for instruction in INSTRUCTIONS.values():
        prompt = prompt.strip().removesuffix(instruction.strip())
    return prompt.strip()
