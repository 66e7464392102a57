"""A small byte-level BPE tokenizer with the harmony special tokens of gpt-oss.

Every word of words.txt is one token, every digit is one token, and any other text falls back to pieces and bytes. Real
prompts can thus go through the same pipeline. The chat template is written from the public description of the harmony
response format (https://cookbook.openai.com/articles/openai-harmony). It names tools only.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# The order of the ids follows gpt-oss, including the reserved ids between them.
SPECIAL_TOKENS = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|reserved_0|>", "<|channel|>", "<|start|>",
    "<|end|>", "<|message|>", "<|reserved_1|>", "<|reserved_2|>", "<|reserved_3|>", "<|call|>",
)  # fmt: skip
BOS, EOS, PAD = "<|startoftext|>", "<|return|>", "<|endoftext|>"
STOP_TOKENS = (EOS, PAD, "<|call|>")

WORDS = (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").split()
# With and without a leading space, as both occur.
_SPLIT = r"\p{N}| ?\\?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"
_PIECES = (
    "\\boxed", " \\boxed", "{}.", "\\frac", "\\sqrt", "\\times", "\\cdot", "**", "\n\n", " $", " \\", "?", " =", " +",
    " -",
)  # fmt: skip

CHAT_TEMPLATE = """\
{%- set ns = namespace(first=0, developer="") -%}
{%- if messages and messages[0]["role"] in ("system", "developer") -%}
{%- set ns.first = 1 -%}
{%- set ns.developer = messages[0]["content"] -%}
{%- endif -%}
<|start|>system<|message|>Reasoning: {{ reasoning_effort | default("low") }}
Valid channels: analysis, final
{%- for tool in tools or [] -%}{{- "\\nTool: " + tool.function.name -}}{%- endfor -%}
{%- for name in builtin_tools or [] -%}{{- "\\nTool: " + name -}}{%- endfor -%}
<|end|>
{%- if ns.developer -%}
<|start|>developer<|message|># Instructions

{{ ns.developer }}<|end|>
{%- endif -%}
{%- for message in messages[ns.first:] -%}
{%- if message["role"] == "user" -%}
<|start|>user<|message|>{{ message["content"] }}<|end|>
{%- elif message["role"] == "assistant" -%}
{%- if message["thinking"] and loop.last and not add_generation_prompt -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message["thinking"] }}<|end|>
{%- endif -%}
<|start|>assistant<|channel|>final<|message|>{{ message["content"] }}
{{- "<|return|>" if loop.last and not add_generation_prompt else "<|end|>" -}}
{%- else -%}
{{ raise_exception("no place in the harmony template for the role " + message["role"]) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""


def build_tokenizer() -> Tokenizer:
    """Build the vocabulary: bytes first, then the merges that make each word one token, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = [text for word in WORDS for text in (word, " " + word)] + list(_PIECES)
    merges: dict[tuple[str, str], int] = {}
    for text in texts:
        word = byte_level.pre_tokenize_str(text)[0][0]
        while len(parts := _merge(list(word), merges)) > 1:
            merges[parts[0], parts[1]] = len(merges)
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _merge(parts: list[str], merges: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair encoding: apply the oldest matching merge until none matches."""
    while True:
        ranked = [(merges[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in merges]
        if not ranked:
            return parts
        _, i = min(ranked)
        parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]


def write_tokenizer(directory: Path) -> Any:
    """Write the tokenizer with its chat template, as transformers does; return it."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(), chat_template=CHAT_TEMPLATE, bos_token=BOS, eos_token=EOS, pad_token=PAD,
        clean_up_tokenization_spaces=False, model_max_length=131072,
    )  # fmt: skip
    tokenizer.save_pretrained(directory)
    return tokenizer
