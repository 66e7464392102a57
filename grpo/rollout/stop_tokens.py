"""Which tokens end a response of gpt-oss: vLLM reads them from the model's generation_config.json.

Without that file it stops only at the tokenizer's own end, <|return|>, and samples on after a call.
"""

from pathlib import Path

from grpo.model.model_files import FileFault, read_json

FILE = "generation_config.json"
NAMES = ("<|return|>", "<|call|>")


def fault(folder: Path) -> FileFault | None:
    """Return what is wrong with the stop tokens of a gpt-oss model; None if nothing is, or it has no such tokens.

    Raises:
        grpo.model.model_files.CheckpointError: for a file that is not JSON.
    """
    remedy = f"copy {FILE} of the gpt-oss that the model comes from into its folder"
    if not (folder / FILE).is_file():
        return FileFault(FILE, f"is missing, so its engine would not stop at {NAMES[1]}", remedy)
    stops = read_json(folder / FILE).get("eos_token_id")
    stops = stops if isinstance(stops, list) else [stops]
    tokenizer = folder / "tokenizer.json"
    added = read_json(tokenizer).get("added_tokens", ()) if tokenizer.is_file() else ()
    missing = [token["content"] for token in added if token["content"] in NAMES and token["id"] not in stops]
    if missing:
        return FileFault(FILE, f"has an eos_token_id without {missing[0]}, where its engine would not stop", remedy)
    return None
