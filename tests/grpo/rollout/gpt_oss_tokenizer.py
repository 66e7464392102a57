"""gpt-oss's vocabulary, from a package that ships it, for openai-harmony and as a tokenizer of transformers.

openai-harmony and tiktoken verify its hash.
"""

import base64
import hashlib
from pathlib import Path

import quicktok
import tiktoken
from openai_harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

NAME = "o200k_base.tiktoken"
ADDRESS = f"https://openaipublic.blob.core.windows.net/encodings/{NAME}"  # tiktoken names the cached file by its hash
WORDS, TOKENS = 199_998, 200_019


def write_vocabulary(folder: Path) -> None:
    """Write the file that openai-harmony and tiktoken would download."""
    encoding = quicktok.get_encoding("o200k_base")
    words = (base64.b64encode(encoding.decode_single_token_bytes(word)).decode() for word in range(WORDS))
    (folder / NAME).write_text("".join(f"{word} {number}\n" for number, word in enumerate(words)))
    (folder / hashlib.sha1(ADDRESS.encode()).hexdigest()).symlink_to(folder / NAME)


def load(folder: Path, monkeypatch) -> tuple[HarmonyEncoding, PreTrainedTokenizerFast]:
    """Return openai-harmony's encoding, and the same tokenizer for transformers."""
    write_vocabulary(folder)
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    words = tiktoken.get_encoding("o200k_harmony")
    # An id may also have a name without a meaning.
    special = sorted(words._special_tokens, key=lambda name: (words._special_tokens[name], "reserved" in name))
    named = {words._special_tokens[name]: name for name in reversed(special)}
    # By position: the last argument has another name in transformers 5.
    converter = TikTokenConverter(
        str(folder / NAME), words._pat_str, False, [named[number] for number in range(WORDS, TOKENS)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=converter.converted(), eos_token="<|return|>")
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS), tokenizer
